# `make demo` and `make test` do all set-up on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow lint types bench results clean

$(READY): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[cli,molecules,images,tune,lightning]" --group dev
	touch $(READY)

demo: $(READY)
	$(BIN)/apmax demo $(DEMO)

test: $(READY)
	$(BIN)/python -m pytest -q

test-slow: $(READY)
	$(BIN)/python -m pytest -q -m slow --durations=5

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks

results: $(READY)
	$(BIN)/python tools/write_results.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
