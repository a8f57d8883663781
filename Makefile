# `make help` lists the targets. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
QUICKSTART := runs/quickstart
COMFYUI ?= $(lastword $(sort $(wildcard $(HOME)/comfy/ComfyUI*)))
NEWEST := $(HOME)/envs/newest
TORCH ?= torch torchvision torchaudio
TYPES := $(BIN)/basedpyright --pythonpath $(BIN)/python --level error
# A machine may forbid compiled files. Each of the many processes of the tests would then compile everything anew.
export PYTHONDONTWRITEBYTECODE :=
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder

.PHONY: help setup quickstart fix lint test test-train test-comfyui test-newest test-all

help: ## these lines
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14
	@echo "one test: $(BIN)/python -m pytest tests/trainer/test_sde.py -k cps"

setup: $(VENV)/.ready ## an environment of its own, .venv

$(VENV)/.ready: requirements.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

quickstart: setup ## trains the embedded model: 4 minutes on two cores
	$(BIN)/otca train workflows/api/quickstart.json --output $(QUICKSTART) $(if $(wildcard $(QUICKSTART)/workflow.json),--resume)

fix: setup ## mends what a program can: style, imports, generated pages and locales
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python -m comfyui_otca.tools.locales
	$(BIN)/python -m comfyui_otca.tools.knobs
	$(BIN)/python tests/nodes/test_contract.py

# Style, layers of imports, types (also as they are on Windows), words that are read twice, budgets, unused code, generated files.
lint: setup ## style, layers, types, budgets, unused code, generated files: a good minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/english.py
	$(BIN)/python tools/repaired_faults.py --check
	$(TYPES) & other=$$!; $(TYPES) --pythonplatform Windows && $(PYTEST) -q tests/test_house.py tests/test_locales.py && wait $$other

# Which tests a layer has, `layer` in tests/conftest.py says. This one trains a toy, starts no processes and needs no ComfyUI.
test: lint ## lint, and the first layer of tests: 5 minutes
	$(PYTEST) --layer test

# Real networks of every family, several processes, and the pretend accelerator.
test-train: setup ## whole trainings, real networks, several processes, the pretend accelerator: 9 minutes
	$(PYTEST) --device pretend:0 tests/device
	$(PYTEST) --layer train

# The newest ComfyUI and page that are there, and whether the pack works in the oldest (docs/maintaining.md).
test-comfyui: setup ## the pack in a ComfyUI that is there, and its page: 12 minutes
	$(PYTEST) --layer comfyui -rs tests/comfyui

# That ComfyUI's packages without the versions that it asks for, as somebody has them who updates everything but the core.
test-newest: setup ## the same with the newest packages that a ComfyUI may have, in an environment beside it
	$(PYTHON) -m venv $(NEWEST)
	sed -E '/^torch(vision|audio)?$$/d; s/^(comfy[-_a-z]*)==.*/\1/' $(COMFYUI)/requirements.txt > $(NEWEST)/requirements.txt
	$(NEWEST)/bin/python -m pip install --quiet --upgrade $(TORCH) -r $(NEWEST)/requirements.txt -r requirements.txt diffusers peft accelerate
	$(NEWEST)/bin/python -m pip list | grep -iE '^(torch|transformers|tokenizers|diffusers|peft|comfy|numpy|safetensors)'
	COMFYUI_PATH=$(COMFYUI) COMFYUI_PYTHON=$(NEWEST)/bin/python $(PYTEST) --layer comfyui -rs tests/comfyui

# All of it, with the long forms of the tests that have one, in every ComfyUI, renderer and page that is there: for a night.
test-all: lint ## all of these with their long forms: a night
	$(PYTEST) --everything -rs
	$(PYTEST) --device pretend:0
