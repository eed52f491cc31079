#!/bin/sh
# Looks for undefined behaviour, memory errors, leaks and data races in the core, memory errors in the
# extension, its data races without the GIL, and memory that is written and was never set:
#   sanitize [miri|address|thread|extension|threads|written]
# Needs nightly Rust with miri and rust-src, valgrind, and clang 16 for `threads`, in CC. Each part says what it ran.
. "$(dirname "$0")/common.sh"
root=$PWD
host=$(host)
reports=$target/reports

# sanitized PART [--about REGEX] NAME COMMAND...: runs a command, and prints a line about it.
sanitized() {
  part=$1 && shift
  "$PYTHON" "$root/tools/sanitize.py" --reports "$reports/$part" "$@"
}

sanitizer_options() { echo "log_path=$reports/$1/report:allocator_may_return_null=1"; }

# Tests that Miri cannot run are ignored where they are, with the reason: `cfg_attr(miri, ignore = "...")`.
miri() {
  export MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=2
  sanitized miri 'Miri over the core' cargo +nightly miri test --quiet --lib
}

# Frames are several times as large: tests of deep trees need more than the two megabytes of a thread.
address() {
  export ASAN_OPTIONS="$(sanitizer_options address)" RUST_MIN_STACK=16777216 RUSTFLAGS=-Zsanitizer=address
  sanitized address 'AddressSanitizer and LeakSanitizer over the core' \
    cargo +nightly test --quiet --workspace --tests --target "$host" --target-dir "$target/address"
}

thread() {
  export TSAN_OPTIONS="$(sanitizer_options thread)" RUSTFLAGS=-Zsanitizer=thread
  sanitized thread 'ThreadSanitizer over the core' \
    cargo +nightly test --quiet --workspace --tests -Zbuild-std --target "$host" --target-dir "$target/thread"
}

# The tests of the package over the extension, except tests that measure memory or stacks, put functions
# in the place of libc's, or fork beside threads, which may hold locks of the sanitizer. Python
# itself does not free all.
left_out='small_stacks or memory_is or memory_follows or larger_than_memory or is_in_memory or
  hostile_values or paths_are_made or paths_are_not_made or faults or killed or a_fork_waits or a_fork_is_not_one'
left_out_files='test_sanitize.py test_unsafe.py robustness/test_out_of_memory.py robustness/test_soak.py
  api/test_orbax.py api/test_orbax_v1.py dropin/test_multiprocess.py dropin/test_flax_suite.py
  dropin/test_checkpoints_differential.py api/test_readme.py test_package.py pytree/test_without_jax.py'
extension() {
  need testable
  package=$target/address/package
  CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 PYO3_PYTHON=$bin/python \
    RUSTFLAGS=-Zsanitizer=address cargo +nightly build --quiet --release --lib --features python \
    --target "$host" --target-dir "$target/address"
  rm -rf "$package" && mkdir -p "$package"
  git ls-files -z python src examples tests docs tools '*.md' pyproject.toml Makefile |
    xargs -0 cp --parents -t "$package"
  cp "$target/address/$host/release/libtreepack.so" "$package/python/treepack/_core.abi3.so"
  cd "$package"
  # shellcheck disable=SC2086
  sanitized extension 'AddressSanitizer over the extension' \
    env PYTHONPATH="$package/python" ASAN_OPTIONS="$(sanitizer_options extension):detect_leaks=0" \
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so.6)" \
    "$bin/python" -m pytest tests -n auto --maxprocesses 8 --dist worksteal -m 'not campaign' \
    $(printf -- '--ignore tests/%s ' $left_out_files) -k "not ($left_out)" ${ARGS:-}
}

# An interpreter without the GIL is sanitized, too; NumPy and jaxlib are not: reports count in which the core, or a
# function that it calls, accesses memory.
threads() {
  packages=$(env -u CC sh tools/free_threaded.sh packages)
  interpreter=$(SANITIZED=1 CC=${CC:-clang} sh tools/free_threaded.sh python)
  package=$target/threads/package
  PYO3_BUILD_EXTENSION_MODULE=1 PYO3_PYTHON=$interpreter RUSTFLAGS=-Zsanitizer=thread TSAN_OPTIONS=report_bugs=0 \
    cargo +nightly build --quiet --profile quick -Zbuild-std --lib --features python \
    --target "$host" --target-dir "$target/threads"
  rm -rf "$package" && mkdir -p "$package"
  cp -r python/treepack "$package" && rm -f "$package"/treepack/*.so
  cp "$target/threads/$host/quick/libtreepack.so" "$package/treepack/_core.so"
  sanitized threads --about '#[0-2] [^\n]*_core\.so' 'ThreadSanitizer over the extension without the GIL' \
    env PYTHON_GIL=0 PYTHONPATH="$package:$packages" \
    TSAN_OPTIONS="$(sanitizer_options threads):exitcode=0" \
    "$interpreter" -m pytest -p no:cacheprovider -m '' tests/robustness/test_threads_at_once.py
}

# Python and NumPy are free with their own unset memory: reports count in which the core takes part, or a file.
written() {
  need testable
  export PYTHONMALLOC=malloc PYTHONPATH=python
  sanitized written --about '_core\.abi3|points to uninitialised' 'valgrind over what is written' \
    valgrind --quiet --log-file="$reports/written/%p" "$bin/python" -u tests/support/written.py
}

nightly
case ${1:-sanitize} in
  sanitize) for part in miri address thread extension threads written; do ($part); done ;;
  miri | address | thread | extension | threads | written) "$1" ;;
  *) echo "sanitize has no part named $1" >&2 && exit 2 ;;
esac
