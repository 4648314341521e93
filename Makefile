# Two commands set everything up on a machine that has Python 3.11 to 3.13 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test check format figures performance docs clean

demo: $(INSTALLED)
	$(BIN)/datransformer demo --out demo

test: $(INSTALLED)
	$(BIN)/pytest -q -n auto

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

figures: $(INSTALLED)
	$(BIN)/python -m datransformer.report.figures docs/images

# The tables of docs/performance.md on attention, from docs/results/bench_attention_*.json.
performance: $(INSTALLED)
	$(BIN)/python -m datransformer.experiments.bench_attention docs

# The documentation, as a site in site/; `python -m http.server -d site` shows it.
docs: $(INSTALLED)
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) demo build site .mypy_cache .pytest_cache .ruff_cache .hypothesis

# PIP_CONSTRAINT, unlike --constraint, also pins what pip fetches to build the package.
$(INSTALLED): pyproject.toml setup.py constraints.txt $(wildcard src/datransformer/ops/blocked_*.cpp src/datransformer/ops/blocked_*.h)
	@echo "Setting up $(VENV); the first time this takes a minute or two."
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@
