# `make demo` and `make test` do all set-up on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow test-lowest lint types docs dist bench results licences clean

$(READY): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[cli,molecules,images,tune,lightning,xgboost]" --group dev --group docs
	touch $(READY)

demo: $(READY)
	$(BIN)/apmax demo $(DEMO)

test: $(READY)
	$(BIN)/python -m pytest -q -n auto --dist worksteal

test-slow: $(READY)
	$(BIN)/python -m pytest -q -m slow -n auto --dist worksteal --durations=5

# The default suite with the lowest versions that pyproject.toml declares; tests of packages that are not installed skip.
LOWEST := .venv-lowest
LOWEST_READY := $(LOWEST)/.ready

$(LOWEST_READY): pyproject.toml constraints-lowest.txt
	test -d $(LOWEST) || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	$(LOWEST)/bin/python -m pip install --quiet -c constraints-lowest.txt -e ".[cli,molecules,images,tune,lightning,xgboost]" \
		hypothesis pandas pytest pytest-xdist
	touch $(LOWEST_READY)

test-lowest: $(LOWEST_READY)
	$(LOWEST)/bin/python -m pytest -q -n auto --dist worksteal

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

# The documentation site in site/: open site/index.html.
docs: $(READY)
	$(BIN)/python -m tools.site

# Wheel and sdist in dist/, tested in a clean environment; EXTRAS="cli images" or EXTRAS=--all tests extras too.
dist: $(READY)
	$(BIN)/python tools/check_distribution.py $(EXTRAS)

bench: $(READY)
	$(BIN)/python -m benchmarks

results: $(READY)
	$(BIN)/python tools/write_results.py

licences: $(READY)
	$(BIN)/python tools/list_licences.py

clean:
	rm -rf $(VENV) $(LOWEST) build dist site .mypy_cache .ruff_cache .pytest_cache
