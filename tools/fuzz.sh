#!/bin/sh
# Looks for inputs that break the core, or the package over it, under AddressSanitizer:
#   fuzz [core|python]  FUZZ_SECONDS (60) for each target; `fuzz` does both
#   fuzz coverage       which lines of the core the corpora reach; needs llvm-tools of nightly Rust
#   fuzz minimize       leaves of each corpus the fewest inputs that reach as much
# Needs rustup, g++, and a Python with a shared library.
. "$(dirname "$0")/common.sh"
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
core='compress compress_numbers decompress decompress_numbers manifest open patch patch_make
  read safetensors structure'
python='remote trees'
options='-dict=dictionary -max_len=32768 -timeout=60 -verbosity=0'
programs=target/$(host)/release

# Coverage that leads libFuzzer, AddressSanitizer, and assertions, as cargo-fuzz sets them.
flags='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing
  -Cdebug-assertions -Coverflow-checks -Zsanitizer=address'

# The C code, too, except its globals: libdeflate has several of one name.
build() {
  nightly
  export "CFLAGS_$(host | tr - _)=-fsanitize=address --param asan-globals=0"
  (cd tests/fuzz && RUSTFLAGS=$flags PYO3_PYTHON=$bin/python \
    cargo +nightly build --quiet --release --target "$(host)" "$@")
}

# The embedded Python finds the packages and its library.
embed() {
  PYTHONPATH=$PWD/python:$("$bin/python" -c 'import site; print(site.getsitepackages()[0])')
  LD_LIBRARY_PATH=$("$bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))')
  export PYTHONPATH LD_LIBRARY_PATH
}

# search TARGET...: runs targets one after the other, each from its corpus.
search() (
  cd tests/fuzz
  for name; do
    "$programs/$name" "corpus/$name" $options -max_total_time="${FUZZ_SECONDS:-60}"
    echo "$name: no input breaks it"
  done
)

fuzz_core() {
  build
  (cd tests/fuzz && "$programs/seeds" corpus)
  search $core
}

fuzz_python() {
  need built
  build --features python --bin remote --bin trees
  "$bin/python" tests/fuzz/seeds.py tests/fuzz/corpus
  (embed && search $python)
}

coverage() {
  need built
  (cd tests/fuzz && PYO3_PYTHON=$bin/python RUSTFLAGS='-Cinstrument-coverage --cfg fuzzing' \
    cargo +nightly build --quiet --release --target "$(host)" --target-dir target/coverage --features python)
  embed
  "$bin/python" tools/fuzz_coverage.py tests/fuzz "target/coverage/$(host)/release" $core $python
}

minimize() {
  need built
  embed
  cd tests/fuzz
  for name in $core $python; do
    rm -rf corpus/smaller && mkdir corpus/smaller
    "$programs/$name" -merge=1 $options corpus/smaller "corpus/$name"
    rm -r "corpus/$name" && mv corpus/smaller "corpus/$name"
  done
}

case ${1:-fuzz} in
  fuzz) fuzz_core && fuzz_python ;;
  core) fuzz_core ;;
  python) fuzz_python ;;
  coverage | minimize) "$1" ;;
  *) echo "fuzz has no part named $1" >&2 && exit 2 ;;
esac
