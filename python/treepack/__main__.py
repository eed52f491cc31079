"""Runs the command line: `python -m treepack`, and the command `treepack`."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line."""
    try:
        from treepack._cli import run
    except ImportError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        print("the command line requires typer and rich: pip install typer rich", file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
