# Two commands: `make demo` asks a real model a question, `make test` runs the tests.

PYTHON ?= python3
# On Linux, torch's ordinary package carries CUDA (some gigabytes) and runs on a CPU too. To take a build for
# CPUs alone, name its index: make demo TORCH_ARGS="--index-url ..."
TORCH ?= torch==2.13.0
TORCH_ARGS ?=
QUESTION ?= What is the capital of France, and what is it known for?
# Seconds after which `make test-changed` begins no more tests.
CHANGED_SECONDS ?= 300
# Test processes side by side; each runs torch with one thread.
WORKERS ?= logical
# To compile the wheel's kernels although the checkout has them: WHEEL_ARGS=--anew.
WHEEL_ARGS ?=
# Further arguments to pytest, such as PYTEST_ARGS="tests/cache --durations 20".
PYTEST_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Tests start many processes, each of which would compile all modules anew if nothing kept the bytecode.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal

# Files with long tests, and those that have no other: files that are not collected cost nothing.
LONG = $(shell grep -rl --include='test_*.py' 'mark\.long' tests)
ONLY_LONG = $(shell grep -rl --include='test_*.py' '^pytestmark = pytest\.mark\.long$$' tests)

.PHONY: demo test test-long test-changed test-parity test-full test-clients docs wheel lint clean

demo: $(VENV)/.octavo
	$(BIN)/octavo chat bundled:smollm2 --quick "$(QUESTION)"

# All tests but the long ones, with samples of long tables and fewer examples of property tests.
test: $(VENV)/.dev
	OCTAVO_TESTS=quick $(PYTEST) -p no:schemathesis -m "not slow and not long" $(ONLY_LONG:%=--ignore=%) $(PYTEST_ARGS)

# The long tests, sampled likewise.
test-long: $(VENV)/.dev
	OCTAVO_TESTS=quick $(PYTEST) -m "long and not slow" $(LONG) $(PYTEST_ARGS)

# Tests of what changed since BASE, whole: all tables, all examples, as far as they get in their time.
test-changed: $(VENV)/.dev
	paths="$$($(BIN)/python .ci/changed.py $(BASE))"; test -z "$$paths" || \
	    OCTAVO_TEST_SECONDS=$(CHANGED_SECONDS) $(PYTEST) -m "not slow" $$paths $(PYTEST_ARGS)

# The table of all models against Hugging Face, whole; writes what `octavo models` shows of it.
test-parity: $(VENV)/.dev
	OCTAVO_PARITY_RECORD=octavo/models/parity.json $(PYTEST) -m "not slow and not long" tests/parity $(PYTEST_ARGS)

# Every test there is, whole; fetches some gigabytes of weights.
test-full: $(VENV)/.dev
	$(PYTEST) -m "" $(PYTEST_ARGS)

# Other projects' clients against a server; their packages live in an environment of their own.
test-clients: .venv-clients/.installed
	OMP_NUM_THREADS=1 .venv-clients/bin/python -m pytest tests/clients $(PYTEST_ARGS)

# The documentation site, with warnings as errors.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Build the wheel and try it in an environment of its own.
wheel: $(VENV)/.dev
	$(BIN)/python .ci/try_wheel.py $(WHEEL_ARGS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	if [ -x $(BIN)/hadolint ]; then $(BIN)/hadolint docker/Dockerfile.*; fi

$(VENV)/.octavo: pyproject.toml setup.py $(wildcard native/*) requirements/demo.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH_ARGS) $(TORCH)
	$(PIP) --editable .
	$(PIP) --no-deps --require-hashes --requirement requirements/demo.txt
	touch $@

# A build of the CPU kernels that exists for tests, where the processor has the instructions that it needs.
TEST_BUILDS = $(shell grep -qw avx512_bf16 /proc/cpuinfo && echo amx_emulated)

# The package is there already: only its extras are new, and the build for tests.
$(VENV)/.dev: $(VENV)/.octavo
	$(PIP) 'octavo[dev]'
	test -z "$(TEST_BUILDS)" || OCTAVO_TEST_BUILDS=$(TEST_BUILDS) $(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) 'octavo[docs]'
	touch $@

# Sees the packages of $(VENV), torch among them; what clients need is installed beside and comes first. uv, because pip
# needs many minutes to find versions that go together.
.venv-clients/.installed: $(VENV)/.dev requirements/clients.txt
	$(PYTHON) -m venv --clear .venv-clients
	$(BIN)/python -c 'import os, sysconfig; print(sysconfig.get_path("purelib"), os.getcwd(), sep="\n")' \
	    > "$$(.venv-clients/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/octavo.pth"
	.venv-clients/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv-clients/bin/python -m uv pip install --quiet --python .venv-clients/bin/python \
	    --requirement requirements/clients.txt
	touch $@

clean:
	rm -rf $(VENV) .venv-clients site build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
