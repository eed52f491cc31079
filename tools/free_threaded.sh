#!/bin/sh
# Builds CPython without the GIL from its source, and runs the tests of Python on it:
#   free_threaded [python|packages|test]
# VERSION is the version of CPython, SOURCE its tarball, else fetched. The build needs a C compiler. With SANITIZED,
# `python` is built with ThreadSanitizer, by clang 16 or newer (CC), and stays in its build folder. `python` prints the
# path of the interpreter, `packages` that of the packages.
. "$(dirname "$0")/common.sh"
version=${VERSION:-3.14.7}
short=${version%.*}
folder=$target/python-${version}t${SANITIZED:+-sanitized}
python=$folder/bin/python${short}t
tests=.venv/free-threaded-$short

fetch() {
  for url in "https://www.python.org/ftp/python/$version/Python-$version.tar.xz" \
    "https://deb.debian.org/debian/pool/main/p/python$short/python${short}_$version.orig.tar.xz"; do
    curl --fail --silent --show-error --location --output "$1.part" "$url" && mv "$1.part" "$1" && return
  done
  echo "cannot fetch the source of CPython $version: set SOURCE to its tarball" >&2 && return 1
}

# Chained, since `set -e` has no effect in the condition that calls this.
built() {
  cd "$folder/build" &&
    ./configure --quiet --disable-gil --prefix "$folder" ${SANITIZED:+--with-thread-sanitizer} &&
    make -s -j "$(getconf _NPROCESSORS_ONLN)" &&
    if test "${SANITIZED:-}"; then mkdir -p ../bin && ln -sf ../build/python "$python"; else make -s install; fi
}

python() {
  test -x "$python" && return
  source=${SOURCE:-$target/python-$version.tar.xz}
  mkdir -p "$folder/build"
  test -f "$source" || fetch "$source"
  echo "Builds CPython $version without the GIL into $folder: minutes." >&2
  tar -xJf "$source" -C "$folder/build" --strip-components 1
  (built) > "$folder.log" 2>&1 || { tail -n 30 "$folder.log" >&2 && return 1; }
  test "${SANITIZED:-}" || rm -rf "$folder/build"
}

installed() {
  python
  PYTHON=$python environment "$tests"
  pip_in "$tests" install --group test
}

# PYTHON_GIL=0: another extension must not switch the GIL on.
run_tests() {
  installed
  pip_in "$tests" install --no-deps .
  PYTHON_GIL=0 "$tests/$scripts/python" -m pytest -n auto --maxprocesses 8 --dist worksteal -m 'not campaign' \
    tests --pyargs treepack
}

case ${1:-test} in
  python) python; echo "$python" ;;
  packages) installed; echo "$PWD/$tests/lib/python${short}t/site-packages" ;;
  test) run_tests ;;
  *) echo "free_threaded has no part named $1" >&2 && exit 2 ;;
esac
