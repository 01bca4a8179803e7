# make demo   environment, installation, and the main job on generated data: tables and plots in demo/
#             (hit rates under demo/hits, the cost of cache management under demo/overhead)
# make test   environment, installation, and every check: ruff, mypy, all tests
# make check  the checks alone
# make docs   environment, installation, and the documentation as pages in site/
# make clean  remove what the others made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test check docs clean

demo: $(VENV)/installed
	$(BIN)/prefixsim sweep examples/demo.toml -o demo/hits
	$(BIN)/prefixsim plot demo/hits
	$(BIN)/prefixsim sweep examples/zero_overhead.toml -o demo/overhead
	$(BIN)/prefixsim plot demo/overhead --kind overhead

test: $(VENV)/installed-dev check

check:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'the documentation is in site/index.html'

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'prefixsim needs Python 3.11 or newer; name one with make PYTHON=python3.12' >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo 'installing prefixsim into $(VENV) ...'
	$(PIP) --editable .
	@touch $@

$(VENV)/installed-docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo 'installing prefixsim and what its documentation needs into $(VENV) ...'
	$(PIP) --editable '.[docs]'
	@touch $@ $(VENV)/installed

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo 'installing prefixsim and what its tests need into $(VENV) ...'
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV) demo site .mypy_cache .ruff_cache .pytest_cache .hypothesis
