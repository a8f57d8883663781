# Two commands: `make quickstart` trains the embedded model, `make test` checks everything. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
QUICKSTART := runs/quickstart

.PHONY: setup quickstart test test-all lint

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

quickstart: setup
	$(BIN)/otca train workflows/api/quickstart.json --output $(QUICKSTART) $(if $(wildcard $(QUICKSTART)/workflow.json),--resume)

# Style, layers of imports, types.
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/basedpyright --pythonpath $(BIN)/python --level error

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder --device pretend:0 tests/device

# With the long forms of the tests that have one; all that is tried in ComfyUI, in every ComfyUI, renderer and page that is there
# (CONTRIBUTING.md); and all tests that hold anywhere on the pretend accelerator: an hour and a quarter in all.
test-all: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder --everything
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder --device pretend:0
