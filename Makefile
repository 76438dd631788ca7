# Two commands from a fresh clone: `make demo` and `make test`. PYTHON chooses the interpreter
# (3.10 or newer) that .venv is made from: `make test PYTHON=python3.12`.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test bench lint clean
.DELETE_ON_ERROR:

demo: $(STAMP)
	$(BIN)/python examples/digits.py

# One thread a worker: two workers with a pool of threads each would fight for the cores.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 -p no:benchmark

bench: $(STAMP)
	$(BIN)/python -m pytest bench

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

clean:
	rm -rf .venv runs build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Touched last, so that an interrupted installation is taken up again by the next target.
$(STAMP): pyproject.toml .ci/constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c .ci/constraints.txt -e '.[dev]'
	touch $@
