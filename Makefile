# The two commands of the README: `make lab` (or `make demo`, the same set-up without a browser) and `make test`.
# Options for Jupyter: make lab JUPYTER_ARGS='--port=8890 --IdentityProvider.token=secret'
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JUPYTER_FLAGS := $(shell [ "$$(id -u)" = 0 ] && echo --allow-root)

.PHONY: lab demo test lint bench clean

SOURCES := pyproject.toml hatch_build.py $(shell find kernel extension labextension/src labextension/style labextension/schema -type f -not -name '*.py[co]')

# Not editable: what runs is the wheel that a user would get, byte code included.
$(VENV)/.lab: $(SOURCES)
	@echo "Setting up $(VENV): packages are downloaded and the panel is built; that can take a few minutes."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet '.[bubblewrap,docker,lab,demo]'
	touch $@

$(VENV)/.test: $(VENV)/.lab
	@echo "Adding what the tests need to $(VENV)."
	$(BIN)/python -m pip install --quiet '.[bubblewrap,docker,lab,demo,test]'
	touch $@

lab: $(VENV)/.lab
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/jupyter lab $(JUPYTER_FLAGS) --ip=127.0.0.1 $(JUPYTER_ARGS) notebooks/quickstart.ipynb

demo: $(VENV)/.lab
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python notebooks/demo.py notebooks/quickstart.ipynb

lint: $(VENV)/.test
	$(BIN)/ruff check kernel extension tests notebooks
	$(BIN)/mypy

test: lint
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest $(PYTEST_ARGS)

bench: $(VENV)/.test
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/bench/run.py
	[ "$$(id -u)" != 0 ] || PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/bench/containers.py
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tests/bench/programs.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis test-results dist
