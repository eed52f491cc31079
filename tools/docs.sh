#!/bin/sh
# Builds the documentation as a site, in site/: an error for a link that leads nowhere.
. "$(dirname "$0")/common.sh"
grouped docs
".venv/docs/$scripts/zensical" build --strict --clean
