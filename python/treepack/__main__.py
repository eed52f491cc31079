"""The command line: `python -m treepack`, and the command `treepack`."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line."""
    try:
        from treepack._cli import run
    except ImportError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit("the command line needs typer and rich: pip install 'treepack[cli]'")
    run()


if __name__ == "__main__":
    main()
