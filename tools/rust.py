"""Finds Rust, or fetches it, and writes the lines of sh that put it on PATH.

    python tools/rust.py FILE

A Rust on PATH that is new enough is taken; another one is left as it is. The toolchain that is
fetched lies where pip puts it as well, in puccinialin's cache.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import platformdirs
import puccinialin

ROOT = Path(__file__).parents[1]
CACHE = Path(platformdirs.user_cache_dir("puccinialin"))
FETCHED = {"RUSTUP_HOME": str(CACHE / "rustup"), "CARGO_HOME": str(CACHE / "cargo")}
TOOLCHAIN = "rustup --quiet toolchain install stable --profile minimal"


def wanted() -> str:
    """Returns the oldest version that builds treepack."""
    return str(tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["rust-version"])


def is_new_enough(environment: dict[str, str]) -> bool:
    """Returns whether both the compiler and cargo are there, and not too old."""
    for program in ("rustc", "cargo"):
        try:
            command = [program, "--version"]
            run = subprocess.run(command, env=environment, capture_output=True, text=True)
        except OSError:
            return False
        version = re.search(r"(\d+)\.(\d+)", run.stdout)
        if run.returncode or not version:
            return False
        if tuple(map(int, version.groups())) < tuple(map(int, wanted().split("."))):
            return False
    return True


def with_fetched() -> dict[str, str]:
    """Returns the environment in which the fetched toolchain comes first."""
    path = f"{CACHE / 'cargo' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **FETCHED, "PATH": path}


def fetch() -> None:
    """Fetches the newest stable toolchain, with the programs that format and lint."""
    print(f"Fetches Rust into {CACHE}: no Rust {wanted()} or newer is on PATH.", flush=True)
    if os.name == "nt":
        sys.exit(f"Rust {wanted()} or newer is missing: install it from https://rustup.rs")
    try:
        puccinialin.setup_rust()
        if not is_new_enough(with_fetched()):  # it leaves an older toolchain as it is
            subprocess.run(TOOLCHAIN.split(), env=with_fetched(), check=True)
    except Exception as error:
        mirror = "set RUSTUP_UPDATE_ROOT and RUSTUP_DIST_SERVER to a mirror"
        sys.exit(
            f"cannot fetch Rust ({error}): install Rust {wanted()} or newer from "
            f"https://rustup.rs, or {mirror}"
        )
    # Without these, `make lint` leaves Rust out.
    components = "rustup --quiet component add rustfmt clippy"
    subprocess.run(components.split(), env=with_fetched())


def main(file: Path) -> None:
    """Writes the file, if it is not there with the same text."""
    text = ""
    if not is_new_enough(dict(os.environ)):
        if not is_new_enough(with_fetched()):
            fetch()
        if not is_new_enough(with_fetched()):
            sys.exit(f"{CACHE} has no Rust {wanted()} or newer: remove it, and try again")
        text = "".join(f"export {name}={shlex.quote(it)}\n" for name, it in FETCHED.items())
        text += f'export PATH={shlex.quote(str(CACHE / "cargo" / "bin"))}:"$PATH"\n'
    if not file.exists() or file.read_text() != text:
        new = file.with_name(f"{file.name}.{os.getpid()}")
        new.write_text(text)
        new.replace(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
