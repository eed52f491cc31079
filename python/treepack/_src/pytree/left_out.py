"""Records the static data and code that a save leaves out."""

from __future__ import annotations

from treepack._src.options import Static, check


class LeftOut:
    """Which static data and code one save leaves out.

    The core does not read it, and passes it to the hooks that need it.

    Attributes:
      static: Which static data that cannot be stored are left out.
      has_code: Whether leaves that are code have been left out.
    """

    def __init__(self, static: Static = "error"):
        check("static", static)
        self.static = static
        self.has_code = False


NOTHING = LeftOut()
