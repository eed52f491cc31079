#!/bin/sh
# Runs the tests of Python with the oldest versions that pyproject.toml allows. PYTHON is 3.11.
. "$(dirname "$0")/common.sh"
environment .venv/oldest
".venv/oldest/$scripts/python" tools/oldest.py > .venv/oldest/requirements.txt
echo 'Installs the oldest versions into .venv/oldest and builds treepack: minutes.'
pip_in .venv/oldest install -r .venv/oldest/requirements.txt --editable '.[all]'
pip_in .venv/oldest install --no-deps "$(grep -o 'eformer==[0-9.]*' pyproject.toml | head -n 1)"
".venv/oldest/$scripts/python" -m pytest -n auto --maxprocesses 8 --dist worksteal -m 'not campaign'
