# The only door: `make help` lists what is here.
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export VENV

.PHONY: help setup demo test lint conformance bench chaos docs lock clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

$(READY): locks/dev.txt locks/uv.txt pyproject.toml scripts/setup.sh
	@sh scripts/setup.sh

setup: $(READY) ## make the virtual environment

demo: $(READY) ## the main job: servers, workers, a kill on the way, and a table that proves nothing was lost
	@$(BIN)/python -m examples.demo

lint: $(READY) ## formatting, lint, types, import contracts, file sizes
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python scripts/check_sizes.py

test: $(READY) lint ## everything that must hold on every commit (real servers on free ports)
	@$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow" $(T)

conformance: $(READY) ## black-box suites against our own workers and servers
	@$(BIN)/python -m pytest tests/conformance $(T)

chaos: $(READY) ## long kill loops and soaks
	@$(BIN)/python -m pytest -m slow --timeout 3600 tests $(T)

bench: $(READY) ## compare with peers, interleaved: make bench B=natq
	@$(BIN)/python -m bench $(B)

docs: $(READY) ## run every snippet in README and docs
	@$(BIN)/python -m pytest -n 2 tests/docs $(T)

lock: ## rewrite locks/dev.txt from pyproject.toml, and locks/uv.txt
	@echo uv | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate \
	  --python-version 3.11 - -o locks/uv.txt $(U)
	@$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 \
	  --group dev --all-extras --no-emit-package penstock pyproject.toml -o locks/dev.txt $(U)

clean: ## remove the virtual environment and caches
	@rm -rf $(VENV) .venv-omniq-* .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
