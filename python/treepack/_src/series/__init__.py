from treepack._src.series.keep import Keep
from treepack._src.series.series import Series

__all__ = ["Keep", "Series"]
