# Two commands: `make quickstart` trains the embedded model, `make test` lints and tests. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
QUICKSTART := runs/quickstart
TYPES := $(BIN)/basedpyright --pythonpath $(BIN)/python --level error
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder

.PHONY: setup quickstart lint test test-train test-comfyui test-all

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

quickstart: setup
	$(BIN)/otca train workflows/api/quickstart.json --output $(QUICKSTART) $(if $(wildcard $(QUICKSTART)/workflow.json),--resume)

# Style, layers of imports, types (also as they are on Windows), phrases that are read twice, budgets of lines, unused code, generated files.
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/lint-imports --no-cache --config tools/handles.ini
	$(TYPES) & other=$$!; $(TYPES) --pythonplatform Windows && wait $$other
	$(BIN)/python tools/english.py
	$(BIN)/python tools/repaired_faults.py --check
	$(PYTEST) -q tests/test_house.py tests/test_locales.py

# Which tests a layer has, `layer` in tests/conftest.py says. This one trains a toy, starts no processes and needs no ComfyUI.
test: lint
	$(PYTEST) --layer test

# Real networks of every family, several processes, and the pretend accelerator.
test-train: setup
	$(PYTEST) --device pretend:0 tests/device
	$(PYTEST) --layer train

# The newest ComfyUI and page that are there, and whether the pack works in the oldest (CONTRIBUTING.md).
test-comfyui: setup
	$(PYTEST) --layer comfyui -rs tests/comfyui

# All of it, with the long forms of the tests that have one, in every ComfyUI, renderer and page that is there: for a night.
test-all: lint
	$(PYTEST) --everything -rs
	$(PYTEST) --device pretend:0
