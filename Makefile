# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV := .venv
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN := $(VENV)/$(SCRIPTS)
SOURCES := $(shell find src -name '*.rs') Cargo.toml Cargo.lock pyproject.toml

.PHONY: help demo example test test-all lint bench docs fuzz sanitize soak format clean licenses \
  test-rust test-python test-oldest lint-rust lint-python lint-packages types \
  fuzz-core fuzz-python fuzz-coverage fuzz-minimize audit audit-offline sanitize-miri sanitize-address \
  sanitize-thread sanitize-extension sanitize-written \
  breaches wheels wheel wheels-linux sdist check-packages try-wheels try-sdist crate \
  check-targets test-aarch64 test-aarch64-wheel test-windows
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

# $(call aloud,what it does,command): a command that tells nothing for long. Every ten seconds this
# says that it goes on, with the last line of its log; the log is shown if the command fails.
define aloud
	@echo '$(1)'; mkdir -p $(VENV); log=$(VENV)/log; : > $$log; n=0; \
	  while sleep 10 > /dev/null 2>&1 && kill -0 $$$$ 2> /dev/null; do \
	    n=$$((n + 10)); echo "  $$n s: $$(tail -n 1 $$log | cut -c -80)"; \
	  done & \
	  $(2) > $$log 2>&1; status=$$?; \
	  kill $$!; test $$status = 0 || cat $$log; exit $$status
endef

PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off

# Makes an environment, unless it is there, whose pip knows the groups of pyproject.toml.
VENV_AT = test -x $(1)/$(SCRIPTS)/python || $(PYTHON) -m venv $(1); \
  $(PIP:$(BIN)/%=$(1)/$(SCRIPTS)/%) --quiet 'pip>=25.1'

# The environment, with treepack built in release mode and installed editable.
$(VENV)/.built: $(SOURCES)
	$(call VENV_AT,$(VENV))
	$(call aloud,Installs jax and flax into $(VENV) and builds treepack: two to five minutes.,\
	  $(PIP) --group demo --editable .)
	@touch $@

# The environment with another group of pyproject.toml as well; treepack is not built again.
$(VENV)/.test $(VENV)/.bench: $(VENV)/.%: $(VENV)/.built
	$(call aloud,Installs the packages of the group "$*" into $(VENV).,$(PIP) --group $*)
	@touch $@

## make demo          train a small model, move it between flax and treepack, compare on 0.5 GB
demo: $(VENV)/.built
	$(BIN)/python examples/demo.py

## make example NAME= export_model, pod, rl_broadcast or train_multihost: programs of examples/
example: $(VENV)/.built
	$(BIN)/python -u examples/$(or $(NAME),$(error NAME= is export_model, pod, rl_broadcast or train_multihost)).py $(ARGS)

## make test          Rust, Python, lint, types, the examples in the documentation: three minutes on two cores
# Python's tests tell how far they are; the others print what they have found at their end.
test: $(VENV)/.test
	$(call aloud,Builds the tests of Rust.,cargo test --no-run)
	+@$(MAKE) --no-print-directory --jobs 3 --output-sync=target test-python test-rust lint

## make test-all      the same, the site, and campaigns: too little memory, kills, arrays over 1 GiB, flax's own tests
test-all: test docs check-targets
	$(BIN)/python -m pytest $(WORKERS) -m campaign

# What the package is built for. Zig is the C compiler of all.
TARGETS := x86_64-unknown-linux-gnu x86_64-unknown-linux-musl aarch64-unknown-linux-gnu \
  aarch64-unknown-linux-musl x86_64-apple-darwin aarch64-apple-darwin x86_64-pc-windows-gnu

## make check-targets  lints for Linux (glibc, musl), macOS and Windows; needs rustup, and is skipped without
check-targets:
	@if ! command -v rustup > /dev/null; then echo 'check-targets is skipped: there is no rustup'; exit 0; fi; \
	set -e; rustup --quiet target add $(TARGETS); \
	test -x $(VENV)/zig/bin/cargo-zigbuild || { $(PYTHON) -m venv $(VENV)/zig && \
	  $(VENV)/zig/bin/python -m pip install --quiet --disable-pip-version-check cargo-zigbuild ziglang; }; \
	export PATH="$(CURDIR)/$(VENV)/zig/bin:$$PATH" PYO3_CROSS_PYTHON_VERSION=3.11; \
	for target in $(TARGETS); do for what in '--all-targets' '--lib --features python'; do \
	  echo "$$target: $$what"; cargo-zigbuild clippy --quiet --target $$target $$what -- -D warnings; \
	done; done

## make test-aarch64  the tests of the core under qemu (Debian: gcc-aarch64-linux-gnu, qemu-user-static)
test-aarch64:
	rustup --quiet target add aarch64-unknown-linux-gnu
	CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
	  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64-static -L /usr/aarch64-linux-gnu' \
	  cargo test --quiet --lib --target aarch64-unknown-linux-gnu

## make test-aarch64-wheel  the wheel in Debian's Python for aarch64 under qemu: every public name, with jax
##                    (Debian: qemu-user-static; apt downloads the rest to target/aarch64)
AARCH64 := $(abspath $(or $(CARGO_TARGET_DIR),target))/aarch64
AARCH64_PIP = $(VENV)/wheels/$(SCRIPTS)/python -m pip --python $(AARCH64)/bin/python install \
  --disable-pip-version-check --quiet --no-compile --only-binary :all:
test-aarch64-wheel:
	+$(MAKE) --no-print-directory wheels-linux LINUX=manylinux2014/aarch64-unknown-linux-gnu
	sh tools/aarch64.sh $(AARCH64)
	$(AARCH64_PIP) --no-deps --force-reinstall dist/*-manylinux*_aarch64.whl
	$(AARCH64_PIP) 'treepack[cli,export]'
	cd $(VENV) && $(AARCH64)/bin/python ../tests/smoke.py

## make test-windows  the same under wine (Debian: gcc-mingw-w64-x86-64, wine)
# Older wines lack a library that Rust's std needs.
WINDOWS := $(or $(CARGO_TARGET_DIR),target)/wine
test-windows:
	rustup --quiet target add x86_64-pc-windows-gnu
	mkdir -p $(WINDOWS)
	x86_64-w64-mingw32-gcc -shared -o $(WINDOWS)/bcryptprimitives.dll tests/support/bcryptprimitives.c -ladvapi32
	CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER=wine WINEDEBUG=-all WINEPREFIX=$(abspath $(WINDOWS))/prefix \
	  WINEPATH='Z:$(subst /,\,$(abspath $(WINDOWS)))' cargo test --quiet --lib --target x86_64-pc-windows-gnu

# A process for each core, each with jax and a gigabyte of memory.
WORKERS := -n auto --maxprocesses 8 --dist worksteal

test-python: $(VENV)/.test
	+$(if $(DRY_RUN),@# )$(BIN)/python -m pytest $(WORKERS) -m 'not campaign'

# With the `+` above, make shows the output at once. It would run the line even if told not to.
DRY_RUN := $(findstring n,$(firstword -$(MAKEFLAGS)))

test-rust:
	MAKEFLAGS= cargo test --quiet

## make test-oldest   Python's tests with the oldest versions that pyproject.toml allows; PYTHON= is 3.11
OLDEST := $(VENV)/oldest
test-oldest:
	$(call VENV_AT,$(OLDEST))
	$(OLDEST)/$(SCRIPTS)/python tools/oldest.py > $(OLDEST)/requirements.txt
	$(call aloud,Installs the oldest versions into $(OLDEST) and builds treepack.,\
	  $(PIP:$(VENV)/%=$(OLDEST)/%) -r $(OLDEST)/requirements.txt --editable '.[all]')
	$(PIP:$(VENV)/%=$(OLDEST)/%) --quiet --no-deps $$(grep -o 'eformer==[0-9.]*' pyproject.toml | head -n 1)
	$(OLDEST)/$(SCRIPTS)/python -m pytest $(WORKERS) -m 'not campaign'

## make lint          formatting and lints of both languages, types, workflows, licences
lint: lint-rust lint-python lint-packages types

lint-rust: $(VENV)/.test
	cargo fmt --check
	cargo clippy --quiet --all-targets -- -D warnings
	PYO3_PYTHON=$(CURDIR)/$(BIN)/python cargo clippy --quiet --all-targets --features python -- -D warnings

lint-python: $(VENV)/.test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

lint-packages: $(VENV)/.test
	$(BIN)/python tools/third_party.py --check
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*))
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml

## make audit         crates against deny.toml, and advisories for crates and Python packages; needs the
##                    network (crates.io, github.com, pypi.org); `make audit-offline` is the half without advisories
audit: audit-offline $(VENV)/.test $(VENV)/audit/.installed
	$(DENY) check advisories
	$(VENV)/audit/$(SCRIPTS)/pip-audit --skip-editable --progress-spinner off \
	  --path $$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')

DENY := $(CURDIR)/target/tools/bin/cargo-deny
$(DENY):
	cargo install --quiet --locked --root target/tools cargo-deny

audit-offline: $(DENY)
	$(DENY) --locked check licenses bans sources
	cd tests/fuzz && $(DENY) --locked --config ../../deny.toml check sources

## make licenses      writes THIRD_PARTY_LICENSES, after a change of dependencies of the crate
licenses:
	$(PYTHON) tools/third_party.py

# The package, its stub, and a script that uses all of it.
types: $(VENV)/.test
	$(BIN)/mypy
	$(BIN)/mypy --strict tests/api/typed_api.py
	$(BIN)/stubtest treepack._core --ignore-disjoint-bases
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	@mkdir -p $(TYPED) && ln -sfn $(CURDIR)/python/treepack $(TYPED)/treepack
	PATH="$(abspath $(BIN)):$$PATH" PYTHONPATH=$(TYPED) $(BIN)/basedpyright --pythonpath $(BIN)/python --verifytypes treepack --ignoreexternal \
	  > $(VENV)/typed/found || { cat $(VENV)/typed/found; exit 1; }
	@grep completeness $(VENV)/typed/found

# Where the checker finds an installed package: it does not look at editable ones. For others it asks the Python of PATH.
TYPED := $(CURDIR)/$(VENV)/typed/site-packages

## make bench         the comparison with other libraries, in time and memory: a short run
## make bench NAME=   another one of benches/ (compare_gzip, startup, open, small, sharded,
##                    replicas, scale, stores), or core (parts of the Rust core), full (all that benches/results has), or
##                    libraries (the table of docs/types.md: whose states are saved and loaded)
BENCH_full = $(BIN)/python benches/compare.py --full --rounds 5 && \
  $(BIN)/python benches/compare_gzip.py --size 128 --write && $(BIN)/python benches/chart.py
BENCH_core = cargo bench --quiet
# Not a benchmark: the states of some sixty libraries, in an environment of their own.
BENCH_libraries = $(PYTHON) -m venv $(VENV)/libraries && \
  $(VENV)/$(PIP:$(BIN)/%=libraries/bin/%) -r tests/libraries/requirements.txt && \
  PYTHONPATH=python $(VENV)/libraries/bin/python tests/libraries/table.py --write
bench: $(if $(filter core,$(NAME)),,$(VENV)/.bench)
	$(or $(BENCH_$(NAME)),$(BIN)/python -u benches/$(or $(NAME),compare).py $(ARGS))

## make docs          the documentation as a site, in site/: an error for what leads nowhere
docs: $(VENV)/docs/.installed
	$(VENV)/docs/$(SCRIPTS)/zensical build --strict --clean

$(VENV)/wheels/.installed $(VENV)/docs/.installed $(VENV)/audit/.installed: $(VENV)/%/.installed: pyproject.toml
	$(call VENV_AT,$(VENV)/$*)
	$(PIP:$(BIN)/%=$(VENV)/$*/$(SCRIPTS)/%) --quiet --group $*
	@touch $@

## make wheels        wheels for Linux and an sdist, in dist/: built with zig, checked, installed, used;
##                    needs rustup, and the interpreters of PYTHONS (3.11, 3.12 and 3.13)
wheels: wheels-linux sdist check-packages try-wheels try-sdist

# The oldest libc of each.
LINUX := manylinux2014/x86_64-unknown-linux-gnu manylinux2014/aarch64-unknown-linux-gnu \
  musllinux_1_2/x86_64-unknown-linux-musl musllinux_1_2/aarch64-unknown-linux-musl
PYTHONS ?= $(foreach version,3.11 3.12 3.13,$(firstword \
  $(wildcard $(HOME)/.pyenv/versions/$(version).*/bin/python) python$(version)))

# Builds a wheel. Where the crates lie here is of no interest in messages of panics.
# (The shell's name of this folder has no colon, on Windows either.)
MATURIN = PATH="$$PWD/$(VENV)/wheels/$(SCRIPTS):$$PATH" CARGO_TARGET_DIR=target/wheels \
  RUSTFLAGS="--remap-path-prefix=$(CURDIR)=treepack --remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=cargo" \
  maturin

wheels-linux: $(VENV)/wheels/.installed
	rm -f dist/*-linux_*.whl
	rustup target add $(notdir $(LINUX))
	for it in $(LINUX); do \
	  libc=$${it%/*}; target=$${it#*/}; rm -f dist/*-$${libc%%[0-9_]*}*_$${target%%-*}.whl; \
	  $(MATURIN) build --release --locked --zig --compatibility $$libc --target $$target --out dist || exit 1; \
	done

# For the system that this runs on.
wheel: $(VENV)/wheels/.installed
	$(MATURIN) build --release --locked --out dist

sdist: $(VENV)/wheels/.installed
	rm -f dist/*.tar.gz
	$(MATURIN) sdist --out dist

# maturin has looked at the symbols, too; auditwheel knows musl only on systems that have it.
check-packages: $(VENV)/wheels/.installed
	$(VENV)/wheels/$(SCRIPTS)/twine check --strict dist/*
	$(VENV)/wheels/$(SCRIPTS)/check-wheel-contents dist/*.whl
	for it in $$(ls dist | grep manylinux); do \
	  $(VENV)/wheels/$(SCRIPTS)/auditwheel show dist/$$it | tr '\n' ' ' | \
	    grep -o 'platform tag: *"manylinux_2_17_[a-z0-9_]*"' || exit 1; \
	done

# $(call try,python,options and package): installs it in an environment of its own, and uses it.
define try
	rm -rf $(VENV)/try && $(1) -m venv $(VENV)/try
	$(PIP:$(VENV)/%=$(VENV)/try/%) --quiet $(2)
	$(PIP:$(VENV)/%=$(VENV)/try/%) --quiet --only-binary :all: 'treepack[cli,export]'
	cd $(VENV) && try/$(SCRIPTS)/python ../tests/smoke.py

endef

try-wheels:
	$(foreach python,$(PYTHONS),$(call try,$(python),--no-deps --no-index --find-links dist --only-binary :all: treepack))

try-sdist:
	$(call try,$(firstword $(PYTHONS)),--no-deps dist/*.tar.gz)

## make crate         the crate as it would be published, built and documented from its own files
crate:
	cargo package --locked --allow-dirty
	RUSTDOCFLAGS='-D warnings' cargo doc --no-deps --locked

# What cargo-fuzz passes: coverage that leads libFuzzer, AddressSanitizer, and what is asserted.
FUZZ_FLAGS := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
  -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1 --cfg fuzzing \
  -Cdebug-assertions -Coverflow-checks -Zsanitizer=address
# Of C, too, but for its globals: libdeflate has several of one name.
FUZZ_CFLAGS := -fsanitize=address --param asan-globals=0
FUZZ_TARGET = $(shell rustc -vV | sed -n 's/^host: //p')
FUZZ_SECONDS ?= 60
FUZZ_CORE := compress compress_numbers decompress decompress_numbers manifest open read structure
FUZZ_PYTHON := remote trees
FUZZ_OPTIONS := -dict=dictionary -max_len=32768 -timeout=60 -verbosity=0

# The embedded Python finds the packages, and its library.
FUZZ_PATHS = PYTHONPATH=$(CURDIR)/python:$$($(abspath $(BIN))/python -c 'import site; print(site.getsitepackages()[0])') \
  LD_LIBRARY_PATH=$$($(abspath $(BIN))/python -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))')

# $(call fuzz,targets,what they begin with): runs them one after the other, each from its corpus.
define fuzz
	cd tests/fuzz && export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 && $(2) && \
	  for name in $(1); do \
	    target/$(FUZZ_TARGET)/release/$$name corpus/$$name $(FUZZ_OPTIONS) \
	      -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	    echo "$$name: no input breaks it"; \
	  done
endef

## make fuzz          looks for inputs that break the core, or what becomes of them in Python, for
##                    FUZZ_SECONDS (60) each, under AddressSanitizer; needs rustup, g++, and a Python with
##                    a shared library
fuzz: fuzz-core fuzz-python

NIGHTLY := cargo +nightly --version > /dev/null 2>&1 || rustup toolchain install nightly --profile minimal

fuzz-core:
	@$(NIGHTLY)
	cd tests/fuzz && CFLAGS_$(subst -,_,$(FUZZ_TARGET))="$(FUZZ_CFLAGS)" RUSTFLAGS="$(FUZZ_FLAGS)" \
	  cargo +nightly build --quiet --release --target $(FUZZ_TARGET)
	$(call fuzz,$(FUZZ_CORE),target/$(FUZZ_TARGET)/release/seeds corpus)

fuzz-python: $(VENV)/.built
	@$(NIGHTLY)
	cd tests/fuzz && CFLAGS_$(subst -,_,$(FUZZ_TARGET))="$(FUZZ_CFLAGS)" RUSTFLAGS="$(FUZZ_FLAGS)" \
	  PYO3_PYTHON=$(abspath $(BIN))/python \
	  cargo +nightly build --quiet --release --target $(FUZZ_TARGET) --features python $(FUZZ_PYTHON:%=--bin %)
	$(BIN)/python tests/fuzz/seeds.py tests/fuzz/corpus
	$(call fuzz,$(FUZZ_PYTHON),export $(FUZZ_PATHS))

## make fuzz-coverage which lines of the core the corpora reach that are there, by file, and which
##                    functions none does; needs the component llvm-tools of nightly Rust
fuzz-coverage: $(VENV)/.built
	cd tests/fuzz && PYO3_PYTHON=$(abspath $(BIN))/python RUSTFLAGS="-Cinstrument-coverage --cfg fuzzing" \
	  cargo +nightly build --quiet --release --target $(FUZZ_TARGET) --target-dir target/coverage --features python
	$(FUZZ_PATHS) $(BIN)/python tools/fuzz_coverage.py tests/fuzz target/coverage/$(FUZZ_TARGET)/release \
	  $(FUZZ_CORE) $(FUZZ_PYTHON)

## make fuzz-minimize leaves of each corpus the fewest inputs that reach as much; after `make fuzz`
fuzz-minimize: $(VENV)/.built
	cd tests/fuzz && export $(FUZZ_PATHS) ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 && \
	  for name in $(FUZZ_CORE) $(FUZZ_PYTHON); do \
	    rm -rf corpus/smaller && mkdir corpus/smaller && \
	    target/$(FUZZ_TARGET)/release/$$name -merge=1 $(FUZZ_OPTIONS) corpus/smaller corpus/$$name && \
	    rm -r corpus/$$name && mv corpus/smaller corpus/$$name || exit 1; \
	  done

## make sanitize      undefined behaviour, memory errors, leaks and data races in the core, memory errors in the extension,
##                    and memory that is written and was never set; needs nightly Rust with miri and rust-src, and
##                    valgrind. Each part (sanitize-miri, -address, -thread, -extension, -written) says what it ran
sanitize: sanitize-miri sanitize-address sanitize-thread sanitize-extension sanitize-written

# $(call sanitized,what it is,where its reports go): runs the command that comes after it, and says in a line what that was.
sanitized = $(PYTHON) $(CURDIR)/tools/sanitize.py --reports $(CURDIR)/target/reports/$(2) $(3) '$(1)'
SANITIZER = log_path=$(CURDIR)/target/reports/$(1)/report:allocator_may_return_null=1

# Tests that Miri cannot run are ignored where they are, with the reason: `cfg_attr(miri, ignore = "...")`.
sanitize-miri:
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=2 $(call sanitized,Miri over the core,miri) \
	  cargo +nightly miri test --quiet --lib

# Its frames are several times as large: tests of deep trees need more than the two megabytes of a thread.
sanitize-address:
	ASAN_OPTIONS=$(call SANITIZER,address) RUST_MIN_STACK=16777216 RUSTFLAGS=-Zsanitizer=address \
	  $(call sanitized,AddressSanitizer and LeakSanitizer over the core,address) \
	  cargo +nightly test --quiet --tests --target $(FUZZ_TARGET) --target-dir target/address

sanitize-thread:
	TSAN_OPTIONS=$(call SANITIZER,thread) RUSTFLAGS=-Zsanitizer=thread \
	  $(call sanitized,ThreadSanitizer over the core,thread) \
	  cargo +nightly test --quiet --tests -Zbuild-std --target $(FUZZ_TARGET) --target-dir target/thread

# The tests of the package over it. Left out is what measures memory or stacks, puts functions of
# its own in the place of libc's, or forks beside threads, which may hold locks of the sanitizer. Python
# itself does not free all.
UNSANITIZED := small_stacks or memory_is or memory_follows or larger_than_memory or is_in_memory or \
  hostile_values or paths_are_made or paths_are_not_made or faults or killed or a_fork_waits or a_fork_is_not_one
UNSANITIZED_FILES := test_sanitize.py test_unsafe.py robustness/test_out_of_memory.py robustness/test_soak.py api/test_orbax.py api/test_orbax_v1.py \
  dropin/test_multiprocess.py dropin/test_flax_suite.py dropin/test_checkpoints_differential.py \
  api/test_readme.py test_package.py pytree/test_without_jax.py
SANITIZED := $(CURDIR)/target/address/package
sanitize-extension: $(VENV)/.test
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 PYO3_PYTHON=$(abspath $(BIN))/python \
	  RUSTFLAGS=-Zsanitizer=address cargo +nightly build --quiet --release --lib --features python --target $(FUZZ_TARGET) --target-dir target/address
	rm -rf $(SANITIZED) && mkdir -p $(SANITIZED)
	git ls-files -z python src examples tests docs tools '*.md' pyproject.toml Makefile | xargs -0 cp --parents -t $(SANITIZED)
	cp target/address/$(FUZZ_TARGET)/release/libtreepack.so $(SANITIZED)/python/treepack/_core.abi3.so
	cd $(SANITIZED) && $(call sanitized,AddressSanitizer over the extension,extension) \
	  env PYTHONPATH=$(SANITIZED)/python ASAN_OPTIONS=$(call SANITIZER,extension):detect_leaks=0 \
	  LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
	  $(abspath $(BIN))/python -m pytest tests $(WORKERS) $(UNSANITIZED_FILES:%=--ignore tests/%) \
	  -k "not ($(UNSANITIZED))" $(ARGS)

# What Python and NumPy do to memory that is not set is theirs: reports count in which the core takes part, or a file.
sanitize-written: $(VENV)/.test
	PYTHONMALLOC=malloc PYTHONPATH=python $(call sanitized,valgrind over what is \
	  written,written,--about '_core\.abi3|points to uninitialised') valgrind --quiet --log-file=target/reports/written/%p \
	  $(BIN)/python -u tests/support/written.py

## make breaches      takes arguments of docs/unsafe.md away, one at a time, and sees the tests named there fail
breaches: $(VENV)/.test
	$(BIN)/python -u tools/breaches.py $(ARGS)

## make soak          CYCLES= (100000) trees are saved, loaded, opened, selected and verified; then THREADS= (24)
##                    do so for MINUTES= (20): memory, handles and threads stay as they are
CYCLES ?= 100000
THREADS ?= 24
MINUTES ?= 20
SOAK = PYTHONMALLOC=malloc GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1 PYTHONPATH=python:tests/support \
  $(BIN)/python -u tests/support/soak.py
soak: $(VENV)/.test
	$(SOAK) --cycles $(CYCLES)
	$(SOAK) --threads $(THREADS) --minutes $(MINUTES)

## make format        formats both languages
format: $(VENV)/.test
	cargo fmt
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

## make clean         removes what the other targets have made
clean:
	rm -rf $(VENV) target dist
