# Everything below works in a fresh clone with Python 3.11+, git and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON310 ?= python3.10
SAFETY := .venv-safety-gymnasium

.PHONY: install safety-gymnasium train test test-slow check docs bench lock lock-safety-gymnasium clean

install: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'tqpo needs Python 3.11 or newer; set PYTHON=python3.x')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $(STAMP)

train: $(STAMP)
	$(BIN)/tqpo train SimpleEnv --algo budget --safety 0.9 --cost-limit 15

test: $(STAMP) check
	.ci/packages
	$(BIN)/python -m pytest -n 2 --dist loadfile

# All slow tests, or those of one folder: make test-slow PART=sweep
test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow -n 2 --dist loadfile tests/$(PART)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

# The documentation as a site, every link checked. To read it with search: python -m http.server -d build/site
docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo build/site/index.html

# Safety-Gymnasium in a Python 3.10 of its own, for `tqpo train bridge:…` (docs/bridge.md): make safety-gymnasium PYTHON310=python3.10
safety-gymnasium: $(SAFETY)/.installed

$(SAFETY)/.installed: requirements-safety-gymnasium.txt
	$(PYTHON310) -c "import sys; sys.exit(sys.version_info[:2] != (3, 10) and 'Safety-Gymnasium needs Python 3.10; set PYTHON310=…')"
	$(PYTHON310) -m venv $(SAFETY)
	$(SAFETY)/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: -r $<
	$(SAFETY)/bin/python -c "import safety_gymnasium as s; e = s.make('SafetyPointGoal1-v0'); e.reset(seed=0); e.step(e.action_space.sample())"
	touch $@

bench: $(STAMP)
	$(BIN)/tqpo bench envs

# Renews requirements.lock: every Python from the floor up, hashes, no addresses.
lock:
	uv pip compile --universal --python-version 3.11 --extra dev --generate-hashes \
		--no-emit-index-url --no-header --no-annotate --quiet -o requirements.lock pyproject.toml

lock-safety-gymnasium:
	printf 'safety-gymnasium==1.0.0\nnumpy<2\n' | uv pip compile --universal --python-version 3.10 --generate-hashes \
		--no-emit-index-url --no-header --no-annotate --quiet -o requirements-safety-gymnasium.txt -

clean:
	rm -rf $(VENV) $(SAFETY) build dist .pytest_cache .ruff_cache
