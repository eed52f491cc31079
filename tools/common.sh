# Shared by the scripts of this folder, which run from the repository root, in the environments of make.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
case ${OS:-} in Windows_NT) scripts=Scripts ;; *) scripts=bin ;; esac
bin=$PWD/.venv/$scripts
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$PWD/$target ;; esac

# Rust, fetched where PATH has none that is new enough (tools/rust.py), except while make makes its environment.
case $0 in
  */environment.sh) ;;
  *)
    test -f .venv/.rust || make --no-print-directory .venv/.rust
    . .venv/.rust
    ;;
esac

fail() { echo "$*" >&2 && exit 1; }

# need built|testable: has make bring treepack and the packages of the tests up to date.
need() { make --no-print-directory ".venv/.$1" .venv/.packages; }

# pip_in FOLDER ARGUMENT...: pip of the environment in that folder.
pip_in() {
  folder=$1 && shift
  "$folder/$scripts/python" -m pip --disable-pip-version-check --quiet "$@"
}

# environment FOLDER: makes an environment, except one whose pip works, with a pip that knows the groups of
# pyproject.toml.
environment() {
  if ! "$1/$scripts/python" -m pip --version > /dev/null 2>&1; then
    command -v "$PYTHON" > /dev/null || fail "$PYTHON is missing: apt install python3 python3-venv"
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
      fail "Python 3.11 or newer is needed, and $("$PYTHON" --version) is too old: set PYTHON to another one"
    "$PYTHON" -c 'import ensurepip, venv' 2> /dev/null || fail "$PYTHON lacks venv: apt install python3-venv"
    "$PYTHON" -m venv --clear "$1"
  fi
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
