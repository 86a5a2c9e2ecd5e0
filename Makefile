# Every target does its own set-up: a virtual environment in .venv with all that the project needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SIZE ?= 256

# Tests start hundreds of processes, and rewrite 500 modules: what Python compiles is kept, also where it was told not to.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: ladder test test-slow test-all mutants check docs gpu format golden clean
.DEFAULT_GOAL := ladder

$(VENV)/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tilewright needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

ladder: $(VENV)/ready  ## every rung of ladder `worklog`: verified, counted, explained
	$(BIN)/tilewright ladder worklog --size $(SIZE)

test: $(VENV)/ready  ## the tests that a change should run: six minutes on two cores
	$(BIN)/python -m pytest --numprocesses=auto --dist=worksteal --quiet

test-slow: $(VENV)/ready  ## the exhaustive rest
	$(BIN)/python -m pytest --numprocesses=auto --dist=worksteal --quiet -m 'slow and not gpu'

test-all: test test-slow  ## every test that needs no GPU

mutants: $(VENV)/ready  ## planted faults of the packages that decide, and how many of them the tests find
	$(BIN)/python benchmarks/mutants.py --write

check: $(VENV)/ready  ## format, lint, types, layers, generated documents
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python benchmarks/write_page.py ladder:worklog README.md --check
	$(BIN)/python benchmarks/write_page.py ladder:ampere docs/tensor_cores.md --check
	$(BIN)/python benchmarks/write_page.py ladder:hierarchy docs/tensor_cores.md --check
	$(BIN)/python benchmarks/write_page.py ladder:swizzle docs/tensor_cores.md --check
	$(BIN)/python benchmarks/write_page.py ladder:worklog docs/tutorial.md --check
	$(BIN)/python benchmarks/write_page.py resources docs/resources.md --check
	$(BIN)/python benchmarks/write_page.py library docs/library.md --check
	$(BIN)/python benchmarks/write_page.py library README.md --check
	$(BIN)/python benchmarks/write_page.py library docs/index.md --check
	$(BIN)/python benchmarks/write_page.py ladder:worklog docs/index.md --check
	$(BIN)/python benchmarks/write_page.py drawn docs/shapes.md --check
	$(BIN)/python benchmarks/write_page.py calibration docs/calibration.md --check
	$(BIN)/python benchmarks/shapes_table.py --check docs/hopper.md
	$(BIN)/python benchmarks/shapes_table.py --check docs/tensor_cores.md --records benchmarks/results/ampere_h200.jsonl
	$(BIN)/python benchmarks/emulation_table.py --records benchmarks/results/emulation_h200.jsonl benchmarks/results/emulation_h100.jsonl --check docs/accuracy.md
	$(BIN)/python benchmarks/scaled.py --records benchmarks/results/scaled_h200.jsonl benchmarks/results/scaled_blocks_h200.jsonl --drawn benchmarks/results/fp8_drawn_h200.jsonl --check docs/fp8.md
	$(BIN)/python benchmarks/sustained.py --check docs/sustained.md
	$(BIN)/python benchmarks/experts.py --records benchmarks/results/experts_h200.jsonl --check docs/fp8.md
	$(BIN)/python benchmarks/few_bits.py --records benchmarks/results/few_bits_h200.jsonl --check docs/few_bits.md
	$(BIN)/python benchmarks/overlap.py --check
	$(BIN)/python benchmarks/predictions.py --check
	$(BIN)/python benchmarks/mutants.py --check

$(VENV)/docs-ready: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

docs: $(VENV)/docs-ready  ## the site, in build/site: reference, a page for every rung, search, every link checked; needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # --quiet would not count warnings
	@echo 'build/site/index.html'

gpu: $(VENV)/ready  ## the tests that need an NVIDIA GPU
	$(BIN)/python -m pytest -m gpu --quiet

format: $(VENV)/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: $(VENV)/ready  ## rewrite the expected texts; read the diff before committing it
	$(BIN)/python -m pytest --quiet --update-golden -m 'not gpu' tests || true

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
