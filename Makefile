# Everything below works in a fresh clone with Python 3.11+, git and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install train test test-slow check bench lock clean

install: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'tqpo needs Python 3.11 or newer; set PYTHON=python3.x')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $(STAMP)

train: $(STAMP)
	$(BIN)/tqpo train SimpleEnv --algo tqpo --safety 0.9 --cost-limit 15

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest tests/test_layers.py -q

bench: $(STAMP)
	$(BIN)/tqpo bench envs

# Renews requirements.lock: every Python from the floor up, hashes, no addresses.
lock:
	uv pip compile --universal --python-version 3.11 --extra dev --generate-hashes \
		--no-emit-index-url --no-header --no-annotate --quiet -o requirements.lock pyproject.toml

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache
