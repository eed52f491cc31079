#!/bin/sh
# Makes the environment of make, .venv, and repairs one that is half made:
#   environment made             the environment itself, with the packages that build treepack
#   environment packages GROUP...  groups of pyproject.toml
# If something is missing on this machine, the last line says which package has it.
. "$(dirname "$0")/common.sh"

c_compiler() {
  test "$scripts" = bin || return 0
  echo 'int main(void) { return 0; }' > .venv/.program.c
  cc -o .venv/.program .venv/.program.c > /dev/null 2>&1 ||
    fail 'a C compiler is missing, or its libc: apt install gcc libc6-dev'
  rm -f .venv/.program*
}

# An install that was stopped may have left packages without their files or lists of these. Chained, since `set -e`
# has no effect in the condition that calls this.
installed() {
  name=$1 && shift
  again=
  test ! -e ".venv/.$name.begun" || again=--ignore-installed
  # shellcheck disable=SC2046,SC2086
  touch ".venv/.$name.begun" &&
    "$bin/python" -m pip --disable-pip-version-check install --progress-bar off $again \
      $(printf -- '--group %s ' "$@") &&
    rm ".venv/.$name.begun"
}

case $1 in
  made)
    environment .venv
    c_compiler
    echo 'Installs the packages that build treepack into .venv.'
    installed made build > .venv/made.log 2>&1 || { cat .venv/made.log && exit 1; }
    ;;
  packages) shift && installed "$1" "$@" ;;
  *) echo "environment has no part named $1" >&2 && exit 2 ;;
esac
