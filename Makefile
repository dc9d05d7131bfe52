# `make test` is all a fresh machine needs: Python 3.11 or newer and make. The rest it installs into .venv.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= auto

FIRST ?= 1000
LAST ?= 3000

.PHONY: test lint fuzz clean
.DEFAULT_GOAL := test

test: lint
	$(BIN)/pytest -n $(WORKERS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Random histories beyond the thousand that `make test` lives through.
fuzz: $(READY)
	$(BIN)/python -m tests.laws $(FIRST) $(LAST)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Octet needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 test")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
