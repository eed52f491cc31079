#!/bin/sh
# Runs a benchmark: `bench NAME ARGUMENT...`.
. "$(dirname "$0")/common.sh"
name=$1 && shift
case $name in
  core) cargo bench --quiet --features bench ;;
  codec) cargo bench --quiet --package treepack-codec --features bench ;;
  full) # all that benches/results has
    "$bin/python" benches/compare.py --full --rounds 5
    "$bin/python" benches/compare_gzip.py --size 128 --write
    "$bin/python" benches/chart.py
    ;;
  libraries) # not a benchmark: the states of some sixty libraries, in an environment of their own
    environment .venv/libraries
    pip_in .venv/libraries install -r tests/libraries/requirements.txt
    PYTHONPATH=python ".venv/libraries/$scripts/python" tests/libraries/table.py --write
    ;;
  *) "$bin/python" -u "benches/$name.py" "$@" ;;
esac
