#!/bin/sh
# Removes arguments for unsafe code, one at a time, and expects a test to fail (tools/breaches.py): `breaches ARGUMENT...`.
. "$(dirname "$0")/common.sh"
need testable
"$bin/python" -u tools/breaches.py "$@"
