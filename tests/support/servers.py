"""HTTP servers in this process."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable
from typing import Any

# The end of a server waits for its next look at whether it is to end: half a second otherwise.
POLL_S = 0.01


class Server(http.server.ThreadingHTTPServer):
    """A server in a thread of its own, until its context ends."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, handler: Callable[..., http.server.BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)  # type: ignore[arg-type]
        threading.Thread(target=self.serve_forever, args=(POLL_S,), daemon=True).start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    def __exit__(self, *args: Any) -> None:
        self.shutdown()
        super().__exit__(*args)
