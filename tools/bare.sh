#!/bin/sh
# Tries `make demo` and `make test` on a machine that has little: a chroot of Debian 12 with an empty home and
# without Rust, to which packages are added as messages ask for them.
#   bare [messages|demo|test|old]  all of them in this order; `old` is `demo` with Debian's own Rust
# Needs root, debootstrap and the network. With TOOLCHAIN, a folder of a rustup, that toolchain stands in for the
# one that they would fetch.
. "$(dirname "$0")/common.sh"
test "$(id -u)" = 0 || fail 'bare needs root, for a chroot'
command -v debootstrap > /dev/null || fail 'debootstrap is missing: apt install debootstrap'
suite=${SUITE:-bookworm}
root=$target/bare-$suite
home=/home/new/treepack

# within COMMAND: runs it in the checkout in the chroot.
within() {
  unshare --mount sh -eu -c '
    root=$1 && shift
    mount --rbind /proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev"
    if test "${TOOLCHAIN:-}"; then mkdir -p "$root/toolchain" && mount --bind "$TOOLCHAIN" "$root/toolchain"; fi
    exec chroot "$root" env -i LANG=C.UTF-8 HOME=/home/new PATH=/usr/sbin:/usr/bin:/sbin:/bin \
      ${RUSTUP_UPDATE_ROOT:+RUSTUP_UPDATE_ROOT="$RUSTUP_UPDATE_ROOT"} DEBIAN_FRONTEND=noninteractive sh -c "cd $1 && $2"
  ' sh "$root" "$home" "$1"
}

# served COMMAND: the same, where the stand-in for a toolchain is served.
served() {
  if test -z "${TOOLCHAIN:-}"; then within "$1"; return; fi
  "$PYTHON" tests/support/toolchains.py /toolchain sh tools/bare.sh within "$1"
}

# asks TEXT: `make demo` fails, and names the package in the last line but make's own.
asks() {
  if within 'make demo' > "$root.log" 2>&1; then fail 'make demo succeeds without a package'; fi
  grep -v '^make: ' "$root.log" | tail -n 1 | grep -F "$1" || { cat "$root.log" && fail "expected: $1"; }
}

adds() { within "apt-get -qq install --yes --no-install-recommends $*" > "$root.log" 2>&1 || { cat "$root.log" && exit 1; }; }

# A fresh copy of the system, which has make, with the files that git tracks.
machine() {
  if ! test -e "$root.new/etc/resolv.conf"; then
    rm -rf "$root.new"
    debootstrap --variant=minbase --include=make,ca-certificates "$suite" "$root.new"
    cp /etc/resolv.conf "$root.new/etc/"
    echo "127.0.1.1 $(uname -n)" >> "$root.new/etc/hosts"  # as Debian's installer does
  fi
  rm -rf "$root" && cp -a "$root.new" "$root" && mkdir -p "$root$home"
  cp -r /etc/ssl/certs "$root/etc/ssl/" # of proxies, too
  git ls-files -z | xargs -0 cp --parents -t "$root$home"
  within 'apt-get -qq update'
}

messages() {
  asks 'apt install python3 python3-venv'
  adds python3
  asks 'apt install python3-venv'
  adds python3-venv
  asks 'apt install gcc libc6-dev'
  adds gcc libc6-dev
}

# Half of an environment: that of a stopped command.
half() { within 'rm -rf .venv && python3 -m venv --without-pip .venv'; }

case ${1:-all} in
  all) machine && messages && half && served 'make demo && make test' && adds cargo && served 'make clean demo' ;;
  messages) machine && messages ;;
  demo | test) machine && adds python3 python3-venv gcc libc6-dev && half && served "make $1" ;;
  old) machine && adds python3 python3-venv gcc libc6-dev cargo && served 'make demo' ;;
  within) within "$2" ;;
  *) echo "bare has no part named $1" >&2 && exit 2 ;;
esac
