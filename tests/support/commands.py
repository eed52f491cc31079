"""Runs of the command line, in this process and in one of their own, and what tests run it on."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import typer.main
from typer.testing import CliRunner

import treepack.__main__
from treepack._cli import app

TREE: dict[str, Any] = {
    "params": {
        "dense": {
            "kernel": np.arange(6000.0, dtype=np.float32).reshape(60, 100),
            "bias": np.ones(3),
        },
        "scale": np.arange(8).astype(ml_dtypes.bfloat16),
    },
    "step": 7,
}


def write_files() -> None:
    """Writes a file of treepack, and one of flax."""
    treepack.save(
        "model",
        {**TREE, "key": jax.random.key(1), "list": [jnp.ones(2), (1, "x")]},
        metadata={"epoch": 3},
    )
    Path("flax").write_bytes(flax.serialization.to_bytes(TREE))


def run(*args: str, status: int = 0) -> str:
    """Runs a command in a process of its own; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "treepack", *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status < 2 else done.stderr


def invoke(*args: Any) -> str:
    """Runs a command in this process; its errors are exceptions."""
    done = CliRunner().invoke(app, [*map(str, args)])
    if done.exit_code:
        raise done.exception if isinstance(done.exception, Exception) else ValueError(done.output)
    return done.output


def refused(*args: str, status: int = 2) -> str:
    """Returns the message of a command that cannot be done, which ends as `run` sees it end."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["treepack", *args])
            with pytest.raises(SystemExit) as ended:
                treepack.__main__.main()
        err.flush()
    message = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert ended.value.code == status, message
    return message


# Made once: typer takes 50 ms to find out what options there are.
COMMAND = typer.main.get_command(app)


def call(*args: str, status: int = 0) -> str:
    """The same in this process; what is written to stderr is among what it prints."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        with pytest.raises(SystemExit) as ended:
            COMMAND(list(args), prog_name="treepack")
        out.flush()
    printed: str = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert ended.value.code == status, printed
    return printed
