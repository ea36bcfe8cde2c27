# GNU make 3.81 (macOS) is enough. Everything happens in .venv/ of this checkout; nothing is
# installed elsewhere.

.DEFAULT_GOAL := help
.PHONY: help lab demo providers test soak bench interop docs address lint peers peers-go peers-java peers-rust peers-localstack tlc pins clean
SHELL := /bin/sh

PYTHON ?=
PYTHONS := $(if $(PYTHON),$(PYTHON),python3.13 python3.12 python3.11 python3 python)
BIN := .venv/bin
READY := .venv/.ready
READY_TO_TEST := .venv/.ready-to-test
READY_TO_DOCUMENT := .venv/.ready-to-document
QUIET := $(shell test -t 2 || echo --quiet)
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input $(QUIET)
UV := uv==0.13.9
PEERS := .cache/peers
PYODIDE := .cache/playground
FOR_LAB := '.[lab]'
FOR_TESTS := '.[lab,test,docs]'
FOR_DOCS := '.[lab,docs]'

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

lab: $(READY)  ## open the first notebook in JupyterLab (LAB_ARGS="--no-browser --port 9000")
	@$(BIN)/python -m lockkit lab $(LAB_ARGS)

demo: $(READY)  ## the same story without a browser: a stall, a lost response, the verdict (DEMO_ARGS=--plain)
	@$(BIN)/python -m lockkit demo $(DEMO_ARGS)

providers: $(READY)  ## ZooKeeper, Hive, DynamoDB, Azurite on loopback, until Ctrl-C (PROVIDERS_ARGS="--only hive")
	@$(BIN)/python -m lockkit providers $(PROVIDERS_ARGS)

# Four workers on two cores: most tests wait for processes. Tests that share something
# heavy name it with xdist_group and stay together.
test: $(READY_TO_TEST)  ## the tests, the main notebooks and a browser included (TEST_ARGS="-k lease -n 0")
	@$(BIN)/python -m pytest -n 4 --dist loadgroup --max-worker-restart 30 $(TEST_ARGS)

soak: $(READY_TO_TEST)  ## ten minutes of real writers in trouble, then long tests and the big explorer runs (SOAK_ARGS="--minutes 60")
	@mkdir -p runs
	@$(BIN)/python -m lockkit soak --minutes 10 --writers 5 --spark 1 --html runs/soak.html $(SOAK_ARGS)
	@$(BIN)/python -m pytest -n 2 --dist loadgroup --max-worker-restart 30 -m soak --timeout 600
	@LOCKKIT_SEEDS=100 $(BIN)/python -m pytest -n 0 --timeout 3600 tests/test_guarantees.py
	@$(BIN)/python -m lockkit explore --big

bench: $(READY_TO_TEST)  ## figures of locks, server, start-up and tables, peers beside them (BENCH_ARGS="--quick table")
	@$(BIN)/python -m tests.bench $(BENCH_ARGS)

# A job in which everything was skipped ends with 5: nothing was shown.
interop: $(READY_TO_TEST)  ## Apache Hudi on Spark and lockkit on one table; other clients on the server (INTEROP_ARGS="-k clients")
	@$(BIN)/python -m pytest -n 0 -m interop tests/interop $(INTEROP_ARGS)

lint: $(READY_TO_TEST)  ## ruff, mypy, and how many lines a program loads
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m mypy
	@$(BIN)/python -m tests.sizes

docs: $(READY_TO_DOCUMENT) $(PYODIDE)/.ready  ## build the documentation in build/docs; warnings are errors
	@$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs build/docs $(DOCS_ARGS)
	@echo "Open build/docs/index.html. The playground wants a server: $(BIN)/python -m http.server -d build/docs"

address:  ## say where the repository is: make address URL=https://github.com/you/lockkit
	@python3 docs/address.py "$(URL)"

peers: $(PEERS)/.ready  ## install the other servers that the tests compare with (350 MB: azurite and SeaweedFS)

peers-go: tests/peers/go.txt  ## install MinIO, versitygw, fake-gcs-server and actionlint by Go (some ten minutes)
	@grep -v '^#' tests/peers/go.txt | GOBIN="$(CURDIR)/$(PEERS)/bin" xargs -n 1 go install

peers-rust: tests/peers/cargo.txt  ## install Garage and s3s-fs by cargo (20 minutes)
	@grep -v '^#' tests/peers/cargo.txt | while read -r crate; do cargo install --quiet --debug --locked --root "$(PEERS)" $$crate || exit 1; done

peers-localstack: $(READY) tests/peers/localstack.txt  ## install LocalStack into an environment of its own (200 MB)
	@$(BIN)/python -m venv $(PEERS)/localstack
	@$(PEERS)/localstack/bin/python -m pip install --quiet -r tests/peers/localstack.txt

# The jar is pinned by its checksum (tests/tlc.py); without it the specification's text alone is tested.
peers-java: tests/peers/pom.xml  ## install S3Proxy and Adobe's S3Mock by Maven (120 MB)
	@mvn -q -B -f tests/peers/pom.xml dependency:copy-dependencies -DoutputDirectory="$(CURDIR)/$(PEERS)/java"

tlc: $(READY_TO_TEST)  ## fetch TLC, which runs the specification in tests/spec (2.6 MB of Maven Central)
	@mkdir -p .cache/tlc
	@$(BIN)/python tests/tlc.py

pins:  ## compile constraints.txt afresh from pyproject.toml
	@command -v uv >/dev/null || { echo "make pins: uv is not installed; pip install uv, then make pins again." >&2; exit 1; }
	uv pip compile --quiet --upgrade --universal --python-version 3.11 --extra lab --extra test --extra docs \
	  --no-annotate --no-header --no-emit-index-url --output-file constraints.txt pyproject.toml

clean:  ## remove .venv, caches and what runs left behind
	rm -rf .venv .cache build dist runs test-results spark-warehouse artifacts metastore_db derby.log
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find lockkit tests notebooks datasets -name __pycache__ -prune -exec rm -rf {} +

# uv installs in a third of pip's time. It does not read pip's settings (a private index, a
# certificate), so pip takes over if uv cannot do it.
define INSTALL
{ $(PIP) install $(UV) && $(BIN)/uv pip install $(QUIET) --python $(BIN)/python --constraint constraints.txt --editable $(1); } \
  || { echo "make: uv could not install the packages; pip does it instead." >&2; \
       $(PIP) install --constraint constraints.txt --editable $(1); }
endef

# The first Python that is new enough and can make environments; else one sentence with the remedy.
$(READY): pyproject.toml constraints.txt
	@set -e; \
	found=; why="no Python 3.11 or newer was found (looked for: $(PYTHONS)); install one, or name one: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; \
	for each in $(PYTHONS); do \
	  "$$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	  if "$$each" -c 'import ensurepip, venv' >/dev/null 2>&1; then found="$$each"; break; fi; \
	  why="$$each cannot make virtual environments; install its venv package (Debian, Ubuntu: apt-get install python3-venv), or name another: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)"; \
	done; \
	if [ -z "$$found" ]; then echo "make: $$why" >&2; exit 1; fi; \
	if [ -e .venv ] && ! $(BIN)/python -m pip --version >/dev/null 2>&1; then rm -rf .venv; fi; \
	if [ ! -e .venv ]; then \
	  echo "Making .venv with $$found and the pinned packages (1.5 GB): some minutes, once."; \
	  "$$found" -m venv .venv; \
	fi; \
	$(call INSTALL,$(FOR_LAB))
	@touch $(READY)

# The archive lets each JVM of a test start in half the CPU time; without Java there is none.
$(READY_TO_TEST): $(READY)
	@echo "Adding what the tests need to .venv, once."
	@$(call INSTALL,$(FOR_TESTS))
	@$(BIN)/python -m lockkit.spark.archive >/dev/null 2>&1 || true
	@touch $(READY_TO_TEST)

$(READY_TO_DOCUMENT): $(READY)
	@echo "Adding what the documentation needs to .venv, once."
	@$(call INSTALL,$(FOR_DOCS))
	@touch $(READY_TO_DOCUMENT)

# Python for the browser, by the checksum of package-lock.json. Without npm the page has one picture.
$(PYODIDE)/.ready: docs/playground/package.json docs/playground/package-lock.json
	@mkdir -p $(PYODIDE)
	@cp docs/playground/package.json docs/playground/package-lock.json $(PYODIDE)/
	@if cd $(PYODIDE) && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null; then touch .ready; \
	else echo "make docs: npm could not install Pyodide; the playground is built without Python." >&2; fi

# What those from PyPI need (google-crc32c) is pinned in .venv already.
$(PEERS)/.ready: $(READY_TO_TEST) tests/peers/package.json tests/peers/package-lock.json tests/peers/requirements.txt
	@mkdir -p $(PEERS)
	$(PIP) install --upgrade --no-deps --target $(PEERS)/python --requirement tests/peers/requirements.txt
	@cp tests/peers/package.json tests/peers/package-lock.json $(PEERS)/
	cd $(PEERS) && PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --no-audit --no-fund
	@touch $(PEERS)/.ready
