# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find src -name '*.rs') Cargo.toml Cargo.lock pyproject.toml

.PHONY: help demo rl-broadcast export-model train-multihost test test-all test-rust test-python lint lint-rust lint-python types fuzz fuzz-python sanitize sanitize-extension format bench bench-full bench-gzip bench-startup bench-open bench-sharded bench-core clean
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

# The environment, with treepack built in release mode and installed editable.
$(VENV)/.built: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo,test]'
	touch $@

## make demo         train a small model, move it between flax and treepack, compare on 0.5 GB
demo: $(VENV)/.built
	$(BIN)/python examples/demo.py

## make rl-broadcast a policy from a learner to its actors through shared memory
rl-broadcast: $(VENV)/.built
	$(BIN)/python examples/rl_broadcast.py

## make export-model a model and its parameters in one file, called by another process
export-model: $(VENV)/.built
	$(BIN)/python examples/export_model.py

## make train-multihost several processes that are killed, and resume on other meshes
train-multihost: $(VENV)/.built
	$(BIN)/python examples/train_multihost.py

## make test         all tests but those that take long: Rust, Python, lint, types, the examples in the documentation
# Python's tests tell how far they are, while the others print what they have found at their end.
test: $(VENV)/.built
	cargo test --no-run
	+@$(MAKE) --no-print-directory --jobs 3 --output-sync=target test-python test-rust lint

## make test-all     the same, and the campaigns: too little memory, kills, arrays over 1 GiB, flax's own tests
test-all: test
	$(BIN)/python -m pytest $(WORKERS) -m campaign

## make test-rust    the tests of the core (no Python involved)
test-rust:
	MAKEFLAGS= cargo test --quiet

## make test-python  the tests of the package, and the examples in docstrings and README
test-python: $(VENV)/.built
	+$(if $(DRY_RUN),@# )$(BIN)/python -m pytest $(WORKERS) -m 'not campaign'

# With the `+` above, make shows the output at once. It would run the line even if told not to.
DRY_RUN := $(findstring n,$(firstword -$(MAKEFLAGS)))

# A process for each core, each with jax and a gigabyte of memory.
WORKERS := -n auto --maxprocesses 8 --dist worksteal

## make lint         formatting and lints of both languages, and types
lint: lint-rust lint-python types

lint-rust: $(VENV)/.built
	cargo fmt --check
	cargo clippy --quiet --all-targets -- -D warnings
	PYO3_PYTHON=$(CURDIR)/$(BIN)/python cargo clippy --quiet --all-targets --features python -- -D warnings

lint-python: $(VENV)/.built
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

## make types        the type checkers: over the package, its stub, and a script that uses all of it
types: $(VENV)/.built
	$(BIN)/mypy
	$(BIN)/mypy --strict tests/api/typed_api.py
	$(BIN)/stubtest treepack._core --ignore-disjoint-bases
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	@mkdir -p $(TYPED) && ln -sfn $(CURDIR)/python/treepack $(TYPED)/treepack
	PYTHONPATH=$(TYPED) $(BIN)/basedpyright --pythonpath $(BIN)/python --verifytypes treepack --ignoreexternal \
	  > $(VENV)/typed/found || { cat $(VENV)/typed/found; exit 1; }
	@grep completeness $(VENV)/typed/found

# Where the checker finds an installed package: it does not look at editable ones.
TYPED := $(CURDIR)/$(VENV)/typed/site-packages

# What cargo-fuzz passes, but for the sanitizers, which need a nightly compiler.
FUZZ_FLAGS := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 -Cdebug-assertions --cfg fuzzing
FUZZ_TARGET = $(shell rustc -vV | sed -n 's/^host: //p')
FUZZ_SECONDS ?= 60

## make fuzz         looks for inputs that break the core, FUZZ_SECONDS (60) for each target; needs a C++ compiler
fuzz:
	cd tests/fuzz && RUSTFLAGS="$(FUZZ_FLAGS)" cargo build --quiet --release --target $(FUZZ_TARGET)
	cd tests/fuzz && for name in compress decompress manifest open read structure; do \
	  mkdir -p corpus/$$name && target/$(FUZZ_TARGET)/release/$$name corpus/$$name \
	    -max_total_time=$(FUZZ_SECONDS) -max_len=8192 -verbosity=0 || exit 1; \
	  echo "$$name: no input breaks it"; \
	done

## make fuzz-python  the same for what becomes of bytes in Python; needs a Python with a shared library
fuzz-python: $(VENV)/.built
	cd tests/fuzz && PYO3_PYTHON=$(abspath $(BIN))/python RUSTFLAGS="$(FUZZ_FLAGS)" \
	  cargo build --quiet --release --target $(FUZZ_TARGET) --features python --bin trees
	mkdir -p tests/fuzz/corpus/trees && $(BIN)/python tests/fuzz/seeds.py tests/fuzz/corpus/trees
	cd tests/fuzz && \
	  PYTHONPATH=$(CURDIR)/python:$$($(abspath $(BIN))/python -c 'import site; print(site.getsitepackages()[0])') \
	  LD_LIBRARY_PATH=$$($(abspath $(BIN))/python -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))') \
	  target/$(FUZZ_TARGET)/release/trees corpus/trees \
	    -max_total_time=$(FUZZ_SECONDS) -max_len=8192 -verbosity=0
	@echo "trees: no input breaks it"

# Modules whose tests Miri can run: no files, no threads that take long, no C.
MIRI_TESTS := raw:: layout:: array::shards array::runs::tests::all_elements wire:: events:: encoder:: window:: structure::recorder

# Modules in which threads meet.
THREAD_TESTS := raw:: parallel:: gzip:: window::

## make sanitize     undefined behaviour, memory errors and data races in the core; needs nightly Rust with Miri and rust-src
sanitize:
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=2 \
	  cargo +nightly miri test --quiet --lib -- $(MIRI_TESTS)
	RUSTFLAGS=-Zsanitizer=address \
	  cargo +nightly test --quiet --tests --target $(FUZZ_TARGET) --target-dir target/address
	RUSTFLAGS=-Zsanitizer=thread \
	  cargo +nightly test --quiet --lib -Zbuild-std --target $(FUZZ_TARGET) --target-dir target/thread \
	  -- $(THREAD_TESTS)

## make sanitize-extension  memory errors in the extension, under the tests of the package; about ten minutes
# Left out is what measures memory or stacks, or puts functions of its own in the place of libc's.
SANITIZED := $(CURDIR)/target/address/package
sanitize-extension: $(VENV)/.built
	PYO3_PYTHON=$(CURDIR)/$(BIN)/python RUSTFLAGS=-Zsanitizer=address cargo +nightly build --quiet \
	  --release --features python --target $(FUZZ_TARGET) --target-dir target/address
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	git ls-files -z python src examples tests docs '*.md' pyproject.toml | xargs -0 cp --parents -t $(SANITIZED)
	cp target/address/$(FUZZ_TARGET)/release/libtreepack.so $(SANITIZED)/python/treepack/_core.abi3.so
	cd $(SANITIZED) && PYTHONPATH=$(SANITIZED)/python \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	  LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
	  $(CURDIR)/$(BIN)/python -m pytest tests --ignore tests/robustness/test_out_of_memory.py \
	  --ignore tests/api/test_orbax.py --ignore tests/dropin/test_multiprocess.py --ignore tests/dropin/test_flax_suite.py \
	  --ignore tests/api/test_readme.py --ignore tests/pytree/test_without_jax.py \
	  -k "not (small_stacks or memory_is or faults or killed)"

## make format       formats both languages
format: $(VENV)/.built
	cargo fmt
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

## make bench        the comparison with other libraries, in time and memory: a short run
bench: $(VENV)/.bench
	$(BIN)/python benches/compare.py

## make bench-gzip   the same for compression
bench-gzip: $(VENV)/.bench
	$(BIN)/python benches/compare_gzip.py

## make bench-full   the same with more libraries and larger trees: writes benches/results
bench-full: $(VENV)/.bench
	$(BIN)/python benches/compare.py --full
	$(BIN)/python benches/compare_gzip.py --size 128 --write
	$(BIN)/python benches/chart.py

## make bench-startup time and memory of processes that import the library
bench-startup: $(VENV)/.bench
	$(BIN)/python benches/startup.py

## make bench-open   looking into files, reading parts of them, and checksums: about two minutes
bench-open: $(VENV)/.bench
	$(BIN)/python benches/open.py

## make bench-sharded checkpoints of two processes, beside Orbax: about ten minutes
bench-sharded: $(VENV)/.bench
	$(BIN)/python benches/sharded.py

## make bench-core   micro-benchmarks of the Rust core
bench-core:
	cargo bench --quiet

$(VENV)/.bench: $(VENV)/.built
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@

## make clean        removes what the other targets have made
clean:
	rm -rf $(VENV) target
