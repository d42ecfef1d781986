# make demo: plan and train a small GPT.   make demo-vision: a ResNet.   make demo-generate: text with a cache.
# make test: every check, of tests those that are quick.   make test-all: all tests, the compiler at its usual level.
# All make their own virtual environment, .venv.
PYTHON ?= python3
VENV ?= .venv
NUM_WORKERS ?= 2
BIN := $(VENV)/bin
PYTEST = $(BIN)/python -m pytest -n $(NUM_WORKERS) --dist worksteal

.PHONY: demo demo-vision demo-generate test test-all checks clean
.DELETE_ON_ERROR:

demo: $(VENV)/.flax
	$(BIN)/python examples/train_gpt.py

demo-vision: $(VENV)/.examples
	$(BIN)/python examples/train_vision.py

demo-generate: $(VENV)/.flax
	$(BIN)/python examples/generate.py

test: checks
	$(PYTEST)

test-all: checks
	XLA_FLAGS="--xla_backend_optimization_level=3" $(PYTEST) -m ""

checks: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

clean:
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'jaxplan needs Python 3.11 or newer, and $(PYTHON) is ' + sys.version.split()[0] + ': name another with PYTHON=...')"
	$(PYTHON) -m venv $(VENV)

# One stamp per extra, so that the environment is reused until pyproject.toml changes.
$(VENV)/.%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	@touch $@
