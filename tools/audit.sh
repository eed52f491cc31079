#!/bin/sh
# Compares crates with deny.toml, and looks for advisories about crates and Python packages:
#   audit          needs the network (crates.io, github.com, pypi.org)
#   audit offline  without advisories
. "$(dirname "$0")/common.sh"
deny=$PWD/target/tools/bin/cargo-deny
test -x "$deny" || cargo install --quiet --locked --root target/tools cargo-deny
"$deny" --locked check licenses bans sources
(cd tests/fuzz && "$deny" --locked --config ../../deny.toml check sources)
test "${1:-}" != offline || exit 0
need testable
grouped audit
"$deny" check advisories
".venv/audit/$scripts/pip-audit" --skip-editable --progress-spinner off \
  --path "$("$bin/python" -c 'import site; print(site.getsitepackages()[0])')"
