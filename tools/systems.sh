#!/bin/sh
# Checks of other systems on this one:
#   systems check-targets [TARGET ...]  lints for Linux (glibc, musl), macOS and Windows, or for some
#                               targets; skipped without rustup
#   systems test-aarch64        the core under qemu (Debian: gcc-aarch64-linux-gnu, qemu-user-static)
#   systems test-aarch64-wheel  the wheel in Debian's Python for aarch64 under qemu (Debian: qemu-user-static):
#                               every public name, with jax; apt downloads Python to target/aarch64
#   systems test-windows        the core under wine (Debian: gcc-mingw-w64-x86-64, wine)
. "$(dirname "$0")/common.sh"

# The targets of packages, and the one of the tests under wine. Zig is the C compiler of all.
check_targets() {
  command -v rustup > /dev/null || { echo 'check-targets is skipped: rustup is missing' && return; }
  targets=${*:-x86_64-unknown-linux-gnu x86_64-unknown-linux-musl aarch64-unknown-linux-gnu
    aarch64-unknown-linux-musl x86_64-apple-darwin aarch64-apple-darwin x86_64-pc-windows-gnu}
  # shellcheck disable=SC2086
  rustup --quiet target add $targets
  if ! test -x .venv/zig/bin/cargo-zigbuild; then
    environment .venv/zig
    pip_in .venv/zig install cargo-zigbuild ziglang
  fi
  export PATH="$PWD/.venv/zig/bin:$PATH" PYO3_CROSS_PYTHON_VERSION=3.11
  for triple in $targets; do
    # Of a target that is named, as by `make test-all`, one configuration; of all, as at night, both.
    test $# -gt 0 || lint "$triple" --lib
    lint "$triple" --workspace --all-targets --features python,bench
  done
}

lint() {
  triple=$1
  shift
  echo "$triple: $*"
  cargo-zigbuild clippy --quiet --target "$triple" "$@" -- -D warnings
}

aarch64() {
  rustup --quiet target add aarch64-unknown-linux-gnu
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
  export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64-static -L /usr/aarch64-linux-gnu'
  cargo test --quiet --lib --target aarch64-unknown-linux-gnu
}

aarch64_wheel() {
  LINUX=manylinux2014/aarch64-unknown-linux-gnu sh tools/packages.sh wheels-linux
  sh tools/aarch64.sh "$target/aarch64"
  install="--python $target/aarch64/bin/python install --no-compile --only-binary :all:"
  # shellcheck disable=SC2086
  pip_in .venv/wheels $install --no-deps --force-reinstall dist/treepack-*-manylinux*_aarch64.whl
  # shellcheck disable=SC2086
  pip_in .venv/wheels $install 'treepack[cli,export]'
  (cd .venv && "$target/aarch64/bin/python" ../tests/smoke.py)
}

# Older wines lack a library that Rust's std needs.
windows() {
  wine=$target/wine
  rustup --quiet target add x86_64-pc-windows-gnu
  mkdir -p "$wine"
  x86_64-w64-mingw32-gcc -shared -o "$wine/bcryptprimitives.dll" tests/support/bcryptprimitives.c -ladvapi32
  export CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=wine WINEDEBUG=-all WINEPREFIX="$wine/prefix"
  export WINEPATH="Z:$(echo "$wine" | tr / '\\')"
  cargo test --quiet --lib --target x86_64-pc-windows-gnu
}

what=$1
shift
case $what in
  check-targets) check_targets "$@" ;;
  test-aarch64) aarch64 ;;
  test-aarch64-wheel) aarch64_wheel ;;
  test-windows) windows ;;
  *) echo "systems cannot do $what" >&2 && exit 2 ;;
esac
