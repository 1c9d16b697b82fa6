# Two commands for everyone: `make demo` and `make test`. `make help` lists the rest.
# Each creates .venv on its first run; later runs reuse it until pyproject.toml or constraints.txt changes.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Small matrices gain nothing from threads, and two test workers would fight over the cores.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test slow lint types docs bench build clean chromium

help:  ## list the commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-8s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml experiments/pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,docs]' -e ./experiments
	touch $@

demo: $(STAMP)  ## three autoencoders on real digits, one of which knows what it does not know; writes runs/demo/report.html
	$(BIN)/python examples/laplacian_digits.py --out runs/demo

# The explorer is tested in a real browser: installed where we may, left out with a word where we may not.
chromium:
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium; } > /dev/null 2>&1 \
	  || echo "no chromium, and it cannot be installed here: tests of the explorer's page are skipped"

test: $(STAMP) chromium  ## the fast suite, two workers
	$(BIN)/python -m pytest -n 2

slow: $(STAMP)  ## the tests that `make test` leaves out because they take long
	$(BIN)/python -m pytest -n 2 -m slow

lint: $(STAMP)  ## style, docstrings and formatting of imports
	$(BIN)/ruff check src tests experiments examples $(wildcard benchmarks)

types: $(STAMP)  ## static types
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

docs: $(STAMP)  ## the documentation, into site/, without the network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(STAMP)  ## timings against the peers, as ratios in one run; writes docs/benchmarks (10 minutes)
	$(BIN)/python -m benchmarks.run

build: $(STAMP)  ## wheel and source archive, into dist/
	$(BIN)/python -m build --no-isolation

clean:  ## remove what the other commands made, .venv included
	rm -rf $(VENV) .venv-peers dist build site runs .pytest_cache .ruff_cache .hypothesis .benchmarks
