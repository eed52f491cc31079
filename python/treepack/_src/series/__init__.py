"""Series of checkpoints: files of one directory, numbered by steps."""

from treepack._src.series.keep import Keep
from treepack._src.series.series import Series

__all__ = ["Keep", "Series"]
