#!/bin/sh
# Checks the stub of the extension, the package by a second checker, and that each public name has a type.
. "$(dirname "$0")/common.sh"
"$bin/stubtest" treepack._core --ignore-disjoint-bases
"$bin/basedpyright" --pythonpath "$bin/python"

# Where the checker finds an installed package: it does not look at editable ones. For others it asks the
# Python of PATH.
typed=$PWD/.venv/typed/site-packages
mkdir -p "$typed" && ln -sfn "$PWD/python/treepack" "$typed/treepack"
found=$(PATH="$bin:$PATH" PYTHONPATH=$typed "$bin/basedpyright" --pythonpath "$bin/python" \
  --verifytypes treepack --ignoreexternal) || { echo "$found" && exit 1; }
echo "$found" | grep completeness
