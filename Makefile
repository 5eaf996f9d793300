# What to do with a clone of hpcprof. `make` alone lists the targets.
SHELL := /bin/bash
PY := .venv/bin/python
NODES ?= 4
TEST ?= tests/cluster/test_clocks_and_network.py

.DEFAULT_GOAL := help
.PHONY: help accuracy-real cluster-repeat demo setup lint test test-fast cluster-up cluster-down cluster-status clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## show hpcprof on a small real training here; needs python3 only, fetches TensorFlow
	@tests/setup/envs.sh venv tensorflow
	@tf="$$(sed -n 's/^HPCPROF_TEST_TF_PYTHON=//p' .hpcprof-test-env)"; \
	if [ -z "$$tf" ]; then echo "demo: no TensorFlow could be installed (see above)" >&2; exit 4; fi; \
	$(PY) -m hpcprof demo --python "$$tf"

setup: ## install what the tests use (as root also Debian/Ubuntu packages)
	@tests/setup/packages.sh
	@tests/setup/nsys.sh
	@tests/setup/envs.sh

lint: .venv/.complete-dev ## ruff and mypy
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy hpcprof

test: setup ## everything: linters, all tests, and that no test left anything behind
	@$(MAKE) --no-print-directory lint
	$(PY) -m pytest; code=$$?; $(PY) -m tests.cluster check && exit $$code

test-fast: .venv/.complete-dev ## tests that need no cluster, browser or training; under 2 minutes
	$(PY) -m pytest -m "not cluster and not browser and not slow and not e2e"

accuracy-real: setup ## run the fault trials on the test cluster (25 minutes) and write docs/accuracy-real.md
	$(PY) -m tests.accuracy run
	$(PY) -m tests.accuracy table

cluster-repeat: setup ## run one test of the cluster (TEST=…, default: the slow network) five times in a row
	for i in 1 2 3 4 5; do $(PY) -m pytest -q $(TEST) || exit; done

cluster-up: ## start a Slurm cluster of NODES virtual nodes (default 4) on this machine, as root
	@tests/setup/packages.sh
	@python3 -m tests.cluster up -n $(NODES)

cluster-down: ## remove the cluster and check that nothing is left
	@python3 -m tests.cluster down

cluster-status: ## what is up
	@python3 -m tests.cluster status

clean: ## remove what was made in this clone; the cache (~/.cache/hpcprof) stays
	rm -rf .venv .hpcprof-test-env build dist hpcprof-runs demo-runs
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "kept: $${HPCPROF_CACHE:-$$HOME/.cache/hpcprof} (training environments, nsys); remove it by hand"

.venv/.complete-dev: pyproject.toml
	@tests/setup/envs.sh venv-dev
