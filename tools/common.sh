# Shared by the scripts of this folder, which run from the repository root, in the environments of make.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
case ${OS:-} in Windows_NT) scripts=Scripts ;; *) scripts=bin ;; esac
bin=$PWD/.venv/$scripts
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$PWD/$target ;; esac

# need built|testable: has make bring treepack and the packages of the tests up to date.
need() { make --no-print-directory ".venv/.$1" .venv/.packages; }

# pip_in FOLDER ARGUMENT...: pip of the environment in that folder.
pip_in() {
  folder=$1 && shift
  "$folder/$scripts/python" -m pip --disable-pip-version-check --quiet "$@"
}

# environment FOLDER: makes an environment, except one that is there, whose pip knows the groups of pyproject.toml.
environment() {
  test -x "$1/$scripts/python" || "$PYTHON" -m venv "$1"
  pip_in "$1" install 'pip>=25.1'
}

# grouped GROUP: makes .venv/GROUP with the packages of a group of pyproject.toml.
grouped() {
  test ".venv/$1/.installed" -nt pyproject.toml && return
  environment ".venv/$1"
  pip_in ".venv/$1" install --group "$1"
  touch ".venv/$1/.installed"
}

nightly() {
  cargo +nightly --version > /dev/null 2>&1 || rustup toolchain install nightly --profile minimal
}

host() { rustc -vV | sed -n 's/^host: //p'; }
