# Every target works on a fresh clone: each first makes .venv with what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TENSORFLOW_STAMP := $(VENV)/.installed-tensorflow

.PHONY: install install-tensorflow demo test test-quick bench check format clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[deepspeed,optimizers,loggers,dev]"
	touch $(STAMP)

install-tensorflow: $(TENSORFLOW_STAMP)

# Two gigabytes that only TensorFlow's own commands and tests need.
$(TENSORFLOW_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[tensorflow]"
	touch $(TENSORFLOW_STAMP)

demo: $(STAMP)
	$(BIN)/python -m scaling.demo

# TensorFlow in a process of its own: it takes threads and memory that other tests measure.
test: $(TENSORFLOW_STAMP)
	$(BIN)/python -m pytest -m "not gpu and not tensorflow" --ignore tests/scaling/tensorflow
	$(BIN)/python -m pytest -m "not gpu" tests/scaling/tensorflow

test-quick: $(STAMP)
	$(BIN)/python -m pytest -m "not gpu and not tensorflow and not distributed and not slow" -n 2 --ignore tests/scaling/tensorflow

# The README's figures; half an hour on two idle cores.
bench: $(STAMP)
	$(BIN)/python -m benchmarks.suite

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) runs demo .pytest_cache .mypy_cache .ruff_cache
