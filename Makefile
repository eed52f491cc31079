# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV := .venv
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN := $(VENV)/$(SCRIPTS)
# Tests start hundreds of programs, each of which would compile the package.
export PYTHONDONTWRITEBYTECODE :=
SOURCES := $(shell find src -name '*.rs') build.rs Cargo.toml Cargo.lock pyproject.toml

.PHONY: help demo example test test-all lint format bench docs clean \
  test-python test-rust lint-rust lint-python lint-packages types types-all lint-rust-core \
  fuzz fuzz-core fuzz-python fuzz-coverage fuzz-minimize audit audit-offline soak breaches licenses \
  sanitize sanitize-miri sanitize-address sanitize-thread sanitize-extension sanitize-threads sanitize-written \
  wheels wheels-linux wheel sdist check-packages try-wheels try-sdist \
  check-targets check-systems test-aarch64 test-aarch64-wheel test-windows test-oldest test-newest test-bare \
  python-free-threaded test-free-threaded
help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)

# An environment without pip is made anew.
ifneq ($(wildcard $(VENV)/.made),)
  ifneq ($(shell $(BIN)/python -c 'import pip; print(1)' 2> /dev/null),1)
    $(shell rm -f $(addprefix $(VENV)/.,made rust packages bench transport built testable))
  endif
endif

# $(call quietly,message,command): runs a command that prints nothing for long; tools/jobs.py shows where it is.
quietly = +@$(BIN)/python tools/jobs.py --say '$(1)' $(notdir $(@:.%=%)) sh -c '$(2)'

# The environment, with the packages that build treepack.
$(VENV)/.made: pyproject.toml tools/environment.sh tools/common.sh
	@PYTHON='$(PYTHON)' sh tools/environment.sh made
	@touch $@

# Puts Rust on the PATH of a recipe that begins with $(RUST): the one there, or a fetched one.
RUST = . $(VENV)/.rust &&
$(VENV)/.rust: FORCE | $(VENV)/.made
	@$(BIN)/python tools/rust.py $@
FORCE:

# What the demo and the tests need; groups are those of pyproject.toml.
$(VENV)/.packages: pyproject.toml | $(VENV)/.made
	$(call quietly,Installs the packages of demo and tests into $(VENV): a minute or two.,sh tools/environment.sh packages demo test)
	@touch $@

$(VENV)/.bench: $(VENV)/.packages
	$(call quietly,Installs the other libraries of the benchmarks.,sh tools/environment.sh packages bench)
	@touch $@

$(VENV)/.transport: $(VENV)/.packages
	$(call quietly,Installs Ray and gRPC.,sh tools/environment.sh packages transport)
	@touch $@

# treepack, editable: in release mode, or, for tests after sources have changed, without optimisation at link time.
EXTENSION = PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip --disable-pip-version-check install --no-deps \
  --no-build-isolation --editable .
$(VENV)/.built: $(SOURCES) | $(VENV)/.rust
	$(call quietly,Builds treepack: two minutes.,$(RUST) $(EXTENSION))
	@touch $@

NEWER = $(if $(wildcard $(VENV)/.built),$(shell find $(SOURCES) -newer $(VENV)/.built),all)
$(VENV)/.testable: $(SOURCES) | $(VENV)/.rust
	$(if $(NEWER),$(call quietly,Builds treepack for the tests.,$(RUST) MATURIN_PEP517_ARGS="--profile quick $$MATURIN_PEP517_ARGS" $(EXTENSION)))
	@touch $@

# $(call at_once,targets): makes them beside each other, and shows the output of the first.
at_once = +@$(BIN)/python tools/jobs.py $(1)

## make demo          train a small model, move it between flax and treepack, compare on 0.5 GB
demo: $(VENV)/.rust
	$(call at_once,$(VENV)/.built $(VENV)/.packages)
	$(BIN)/python examples/demo.py

## make test          every behaviour once: Rust, Python, lint, types; three minutes on two cores, longer the first time
test: $(VENV)/.rust
	$(call at_once,$(VENV)/.testable $(VENV)/.packages)
	$(call at_once,test-python test-rust lint)

## make test-all      everything, with more examples; campaigns of faults, kills and large arrays; other systems; docs
test-all: $(VENV)/.rust
	$(call at_once,$(VENV)/.built $(VENV)/.packages)
	$(call at_once,TIER=all test-python test-rust lint types-all lint-rust-core)
	$(call at_once,docs check-systems)

## make lint          formatting and lints of both languages, types, prose, workflows, licences
lint: lint-python lint-packages types lint-rust

## make format        formats both languages
format: $(VENV)/.packages $(VENV)/.rust
	$(RUST) cargo fmt
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

## make docs          the documentation as a site, in site/: an error for a link that leads nowhere
docs:
	sh tools/docs.sh

## make bench         the comparison with other libraries, in time and memory: a short run
## make bench NAME=   another one of benches/ (compare_gzip, startup, open, small, delta, accelerator,
##                    jax_serialization, sharded, replicas, scale, stores, threads, transport), or core (parts of the Rust core), full
##                    (all that benches/results has), or libraries (the table of docs/types.md: whose states are saved and loaded)
bench: $(VENV)/.rust $(if $(filter core,$(NAME)),,$(VENV)/.built $(VENV)/.bench) $(if $(filter transport,$(NAME)),$(VENV)/.transport)
	sh tools/bench.sh $(or $(NAME),compare) $(ARGS)

## make example NAME= export_model, hugging_face, pod, rl_broadcast or train_multihost: programs of examples/
example: $(VENV)/.built $(VENV)/.packages
	$(BIN)/python -u examples/$(or $(NAME),$(error NAME= is export_model, hugging_face, pod, rl_broadcast or train_multihost)).py $(ARGS)

## make clean         removes what the other targets have made
clean:
	rm -rf $(VENV) target dist site

# They find Rust in .venv/.rust.
fuzz fuzz-core fuzz-python fuzz-coverage fuzz-minimize sanitize sanitize-miri sanitize-address sanitize-thread \
  sanitize-extension sanitize-threads sanitize-written audit audit-offline wheels wheels-linux wheel sdist try-sdist \
  check-targets test-aarch64 test-aarch64-wheel test-windows check-systems test-oldest test-newest \
  test-free-threaded soak licenses lint-packages: | $(VENV)/.rust

## Scripts of tools/, each with its targets: audit.sh, bare.sh (a machine without Rust), breaches.py, free_threaded.sh (Python without the GIL), fuzz.sh,
##                    newest.sh and oldest.sh (versions of other packages),
##                    packages.sh (wheels, sdist), sanitize.sh, soak.sh, systems.sh (other systems)
fuzz fuzz-core fuzz-python fuzz-coverage fuzz-minimize:
	@sh tools/fuzz.sh $(@:fuzz-%=%)
sanitize sanitize-miri sanitize-address sanitize-thread sanitize-extension sanitize-threads sanitize-written:
	@sh tools/sanitize.sh $(@:sanitize-%=%)
audit audit-offline:
	@sh tools/audit.sh $(@:audit-%=%)
wheels wheels-linux wheel sdist check-packages try-wheels try-sdist:
	@sh tools/packages.sh $@
check-targets test-aarch64 test-aarch64-wheel test-windows:
	@sh tools/systems.sh $@
# Each system, libc and architecture once.
check-systems:
	@sh tools/systems.sh check-targets aarch64-unknown-linux-musl aarch64-apple-darwin x86_64-pc-windows-gnu
test-oldest test-newest:
	@sh tools/$(@:test-%=%).sh
# CPython without the GIL, from its source; the tests on it.
python-free-threaded test-free-threaded:
	@sh tools/free_threaded.sh $(@:%-free-threaded=%)
soak:
	@sh tools/soak.sh
test-bare:
	@PYTHON=$(PYTHON) sh tools/bare.sh $(ARGS)
breaches: $(VENV)/.testable $(VENV)/.packages
	$(RUST) $(BIN)/python -u tools/breaches.py $(ARGS)
licenses:
	$(RUST) $(PYTHON) tools/third_party.py

# The parts of `make test`. A process for each core, each with jax and a gigabyte of memory, and one
# more, since many tests wait.
WORKERS = $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
TIER := quick
TIER_all := -m '' --hypothesis-profile=all --durations=40 --junitxml=target/tests.xml
TIER_nightly := -m '' --hypothesis-profile=nightly --durations=40
CASES_quick := PROPTEST_CASES=16
PROGRAMS_quick := --lib --test core
test-python: $(VENV)/.testable $(VENV)/$(if $(filter nightly,$(TIER)),.transport,.packages)
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal $(TIER_$(TIER))

test-rust: $(VENV)/.rust
	$(call quietly,Builds and runs the tests of Rust.,$(RUST) MAKEFLAGS= $(CASES_$(TIER)) cargo test --quiet $(PROGRAMS_$(TIER)))

# A Rust of the system may lack them.
LINTERS = if ! { cargo fmt --version && cargo clippy --version; } > /dev/null 2>&1; then \
  echo "skipped: rustfmt or clippy is missing (with rustup: rustup component add rustfmt clippy)"; exit; fi;
lint-rust: $(VENV)/.rust
	$(call quietly,Lints Rust.,$(RUST) $(LINTERS) cargo fmt --check && PYO3_PYTHON=$(CURDIR)/$(BIN)/python cargo clippy --quiet --lib --features python -- -D warnings)

# Tests and benchmarks; without Python some parts of the core are not used.
lint-rust-core: $(VENV)/.rust
	$(call quietly,Lints the core without Python.,$(RUST) $(LINTERS) cargo clippy --quiet --all-targets --features bench -- -D warnings)

lint-python: $(VENV)/.packages
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/python tools/prose.py
	@$(BIN)/typos

lint-packages: $(VENV)/.packages
	@sh tools/lint_packages.sh

types: $(VENV)/.packages
	$(call quietly,Checks types.,$(BIN)/mypy && $(BIN)/mypy --strict tests/api/typed_api.py)

# A second checker, the stub of the extension, and the types of all public names.
types-all: types $(VENV)/.testable
	$(call quietly,Checks types by another checker.,sh tools/types.sh)
