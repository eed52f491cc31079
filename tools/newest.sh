#!/bin/sh
# Runs the tests of Python on the wheel of this system, with the newest versions that pip finds. PYTHON is the
# interpreter: by default the newest of python3.15, python3.14 and python3.13.
for newest in python3.15 python3.14 python3.13; do
  PYTHON=${PYTHON:-$(command -v $newest || true)}
done
. "$(dirname "$0")/common.sh"
sh tools/packages.sh wheel
folder=.venv/newest-$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
environment "$folder"
echo "Installs the newest versions into $folder: minutes."
pip_in "$folder" install --upgrade --upgrade-strategy eager --group test
pip_in "$folder" install --force-reinstall --no-deps --no-index --find-links dist treepack
"$folder/$scripts/python" -m pip list --format freeze | grep -E '^(jax|jaxlib|flax|numpy|fsspec|orbax-checkpoint|treepack)='
"$folder/$scripts/python" -m pytest -n auto --maxprocesses 8 --dist worksteal -m 'not campaign' tests --pyargs treepack
