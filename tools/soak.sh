#!/bin/sh
# Saves, loads, opens, selects and verifies CYCLES (100000) trees; then THREADS (24) do so for MINUTES
# (20): memory, handles and threads stay as they are.
. "$(dirname "$0")/common.sh"
need testable
export PYTHONMALLOC=malloc GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1
export PYTHONPATH=python:tests/support
"$bin/python" -u tests/support/soak.py --cycles "${CYCLES:-100000}"
"$bin/python" -u tests/support/soak.py --threads "${THREADS:-24}" --minutes "${MINUTES:-20}"
