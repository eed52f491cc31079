# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV := .venv
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN := $(VENV)/$(SCRIPTS)
# Tests start hundreds of programs, each of which would compile the package.
export PYTHONDONTWRITEBYTECODE :=
SOURCES := $(shell find src -name '*.rs') build.rs Cargo.toml Cargo.lock pyproject.toml

.PHONY: help demo example test test-all lint format bench docs clean check-systems \
  test-python compile-tests test-rust lint-rust lint-python types types-all
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
.PHONY: $(VENV)/.rust
$(VENV)/.rust: | $(VENV)/.made
	@$(BIN)/python tools/rust.py $@

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
	$(call at_once,$(VENV)/.built $(VENV)/.packages compile-tests)
	$(BIN)/python examples/demo.py

## make test          every behaviour once: Rust, Python, formats, types; three minutes on two cores, longer the first time
test: $(VENV)/.rust
	$(call at_once,$(VENV)/.testable $(VENV)/.packages)
	$(call at_once,test-python test-rust lint-python types)

## make test-all      everything, with more examples; campaigns of faults, kills and large arrays; other systems; docs
# The rest runs beside campaigns, which often wait.
test-all: $(VENV)/.rust
	$(call at_once,$(VENV)/.built $(VENV)/.packages compile-tests)
	$(call at_once,TIER=all test-python test-rust lint-rust lint-python types-all docs check-systems)

## make lint          formatting and lints of both languages, types, prose, workflows, licences
lint: lint-python types lint-rust

## make format        formats both languages
format: $(VENV)/.packages $(VENV)/.rust
	$(RUST) cargo fmt --all
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

## make docs          the documentation as a site, in site/: an error for a link that leads nowhere
docs:
	sh tools/docs.sh

## make bench         the comparison with other libraries, in time and memory: a short run
## make bench NAME=   another one of benches/ (compare_gzip, startup, open, small, delta, accelerator, mapping,
##                    jax_serialization, sharded, replicas, scale, stores, threads, transport), or core or codec (parts of the Rust core), full
##                    (all that benches/results has), or libraries (the table of docs/types.md: whose states are saved and loaded)
bench: $(VENV)/.rust $(if $(filter codec core,$(NAME)),,$(VENV)/.built $(VENV)/.bench) $(if $(filter transport,$(NAME)),$(VENV)/.transport)
	sh tools/bench.sh $(or $(NAME),compare) $(ARGS)

## make example NAME= export_model, hugging_face, pod, rl_broadcast or train_multihost: programs of examples/
example: $(VENV)/.built $(VENV)/.packages
	$(BIN)/python -u examples/$(or $(NAME),$(error NAME= is export_model, hugging_face, pod, rl_broadcast or train_multihost)).py $(ARGS)

## make clean         removes what the other targets have made
clean:
	rm -rf $(VENV) target dist site

## sh tools/NAME.sh   audit, bare (a machine without Rust), breaches (unsafe code), free_threaded (Python without the GIL),
##                    fuzz, newest and oldest (versions of other packages), packages (wheels, sdist), sanitize, soak,
##                    systems (other systems). Each script begins with its arguments.
# Each system and architecture once; at night, each target of packages.
check-systems: $(VENV)/.rust
	@sh tools/systems.sh check-targets aarch64-apple-darwin x86_64-pc-windows-gnu

# The parts of `make test`. A process for each core, each with jax and a gigabyte of memory, and more,
# since many tests wait: campaigns most.
WORKERS = $(shell expr $$(getconf _NPROCESSORS_ONLN) + $(if $(filter quick,$(TIER)),1,2))
TIER := quick
TIER_all := -m '' --hypothesis-profile=all --durations=40 --junitxml=target/tests.xml
TIER_nightly := -m '' --hypothesis-profile=nightly --durations=40
CASES_quick := PROPTEST_CASES=16
PROGRAMS_quick := --lib
test-python: $(VENV)/.testable $(VENV)/$(if $(filter nightly,$(TIER)),.transport,.packages)
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal $(TIER_$(TIER))

# For `make test`, while `make demo` waits for the network, or for the one core that links treepack.
compile-tests: $(VENV)/.rust
	$(call quietly,Compiles the tests of Rust.,$(RUST) MAKEFLAGS= nice cargo test --quiet $(PROGRAMS_quick) --no-run)

test-rust: $(VENV)/.rust
	$(call quietly,Builds and runs the tests of Rust.,$(RUST) $(call if_there,fmt,cargo fmt --all --check) && MAKEFLAGS= $(CASES_$(TIER)) cargo test --quiet $(or $(PROGRAMS_$(TIER)),--workspace))

# $(call if_there,fmt|clippy,command): a Rust of the system may lack them.
if_there = if cargo $(1) --version > /dev/null 2>&1; then $(2); \
  else echo "skipped: cargo $(1) is missing (with rustup: rustup component add rustfmt clippy)"; fi
CLIPPY = nice cargo clippy --quiet
# The extension, then the core without Python, some parts of which are not used then, with tests and benchmarks.
lint-rust: $(VENV)/.rust
	$(call quietly,Lints Rust.,$(RUST) $(call if_there,fmt,cargo fmt --all --check) && $(call if_there,clippy,PYO3_PYTHON=$(CURDIR)/$(BIN)/python $(CLIPPY) --lib --features python -- -D warnings && $(CLIPPY) --workspace --all-targets --features bench -- -D warnings))

lint-python: $(VENV)/.packages
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/python tools/prose.py
	@$(BIN)/typos
	@sh tools/lint_packages.sh

types: $(VENV)/.packages
	$(call quietly,Checks types.,$(BIN)/mypy && $(BIN)/mypy --strict tests/api/typed_api.py)

# A second checker, the stub of the extension, and the types of all public names.
types-all: types $(VENV)/.testable
	$(call quietly,Checks types by another checker.,sh tools/types.sh)
