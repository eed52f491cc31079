#!/bin/sh
# Builds packages into dist/, and tries them:
#   packages wheels        all of the below but `wheel`
#   packages wheels-linux  wheels for Linux (LINUX=libc/target ...), by zig; needs rustup
#   packages wheel         a wheel for this system
# Of each wheel, also one of treepack-core, which differs in its metadata (tools/core_wheel.py).
#   packages sdist
#   packages check-packages  metadata, contents, the oldest libc
#   packages try-wheels    installs and uses the wheel with each interpreter of PYTHONS (3.11, 3.12 and 3.13)
#   packages try-sdist     with the first of them
. "$(dirname "$0")/common.sh"

# The oldest libc of each.
LINUX=${LINUX:-manylinux2014/x86_64-unknown-linux-gnu manylinux2014/aarch64-unknown-linux-gnu
  musllinux_1_2/x86_64-unknown-linux-musl musllinux_1_2/aarch64-unknown-linux-musl}

pythons() {
  test -z "${PYTHONS:-}" || { echo "$PYTHONS" && return; }
  for version in 3.11 3.12 3.13; do
    set -- "$HOME/.pyenv/versions/$version".*/bin/python
    if test -x "$1"; then echo "$1"; else echo "python$version"; fi
  done
}

# Messages of panics name crates, not the folders where they lie here.
maturin() {
  grouped wheels
  PATH=$bin/../wheels/$scripts:$PATH CARGO_TARGET_DIR=target/wheels \
    RUSTFLAGS="--remap-path-prefix=$PWD=treepack --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo" \
    command maturin "$@"
}

wheels_linux() {
  rm -f dist/*-linux_*.whl
  for it in $LINUX; do
    libc=${it%/*} && triple=${it#*/}
    rustup target add "$triple"
    rm -f dist/*-"${libc%%[0-9_]*}"*_"${triple%%-*}".whl
    maturin build --release --locked --zig --compatibility "$libc" --target "$triple" --out dist
  done
  core_wheels
}

core_wheels() {
  rm -f dist/treepack_core-*
  ".venv/wheels/$scripts/python" tools/core_wheel.py dist
}

sdist() {
  rm -f dist/*.tar.gz
  maturin sdist --out dist
}

# maturin has looked at the symbols, too; auditwheel knows musl only on systems that have it.
check_packages() {
  grouped wheels
  tools=.venv/wheels/$scripts
  "$tools/twine" check --strict dist/*
  "$tools/check-wheel-contents" dist/*.whl
  for it in dist/*manylinux*; do
    test -e "$it" || continue
    "$tools/auditwheel" show "$it" | tr '\n' ' ' | grep -o 'platform tag: *"manylinux_2_17_[a-z0-9_]*"'
  done
}

# use PACKAGE PROGRAM PYTHON OPTION...: installs a package in an environment of its own, and uses it.
use() {
  package=$1 && program=$2 && shift 2
  rm -rf .venv/try && "$1" -m venv .venv/try && shift
  pip_in .venv/try install "$@"
  pip_in .venv/try install --only-binary :all: "$package"
  (cd .venv && "try/$scripts/python" "../tests/$program")
  ".venv/try/$scripts/treepack" --version
}

try_wheels() {
  for python in $(pythons); do
    set -- "$python" --no-deps --no-index --find-links dist --only-binary :all:
    use 'treepack[cli,export]' smoke.py "$@" treepack
    use 'treepack-core[cli]' smoke_core.py "$@" treepack-core
  done
}

try_sdist() { use 'treepack[cli,export]' smoke.py "$(pythons | head -n 1)" --no-deps dist/*.tar.gz; }

case $1 in
  wheels) wheels_linux && sdist && check_packages && try_wheels && try_sdist ;;
  wheels-linux) wheels_linux ;;
  wheel) maturin build --release --locked --out dist && core_wheels ;;
  sdist) sdist ;;
  check-packages) check_packages ;;
  try-wheels) try_wheels ;;
  try-sdist) try_sdist ;;
  *) echo "packages cannot do $1" >&2 && exit 2 ;;
esac
