"""A server from which puccinialin gets a rustup that takes a toolchain of this machine.

    python tests/support/toolchains.py TOOLCHAIN COMMAND...

It stands in for static.rust-lang.org where that cannot be reached, or must not be.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

# rustup-init, and the rustup that it installs: programs of the toolchain but the linters, which are
# components.
INSTALLER = """#!/bin/sh
set -e
echo 'info: downloading component rustc' >&2
mkdir -p "$CARGO_HOME/bin"
cd "$CARGO_HOME/bin"
link() { for it; do ln -sf "{toolchain}/bin/$it" "$it"; done; }
link rustc cargo rustdoc
cat > rustup <<'END'
#!/bin/sh
cd "$CARGO_HOME/bin"
link() { for it; do ln -sf "{toolchain}/bin/$it" "$it"; done; }
echo "$*" >> "$RUSTUP_HOME/calls"
case "$*" in *component*)
  link rustfmt cargo-fmt cargo-clippy clippy-driver ;;
esac
END
chmod +x rustup
"""


@contextlib.contextmanager
def served(toolchain: Path | str) -> Iterator[dict[str, str]]:
    """Yields the environment in which puccinialin installs a toolchain of rustup's folder."""
    with tempfile.TemporaryDirectory() as folder:
        triple = "x86_64-unknown-linux-gnu"
        path = Path(folder, "dist", triple, "rustup-init")
        path.parent.mkdir(parents=True)
        path.write_text(INSTALLER.replace("{toolchain}", str(toolchain)))
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {"RUSTUP_UPDATE_ROOT": f"http://127.0.0.1:{server.server_port}"}
        finally:
            server.shutdown()
            server.server_close()


if __name__ == "__main__":
    with served(sys.argv[1]) as environment:
        sys.exit(subprocess.call(sys.argv[2:], env={**os.environ, **environment}))
