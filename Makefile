# Two commands on a fresh machine with Python 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3.11
VENV ?= .venv
BIN = $(VENV)/bin
CORE = $(VENV)/.installed-core
BENCH = $(VENV)/.installed-bench
SITE = $(VENV)/.installed-docs
PARALLEL ?= -n 2 --dist loadfile

.PHONY: demo test test-all lint bench docs info clean

demo: $(CORE)
	$(BIN)/stepnet demo --out demo

test: lint
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL)

test-all: lint
	$(BIN)/python -m pytest $(PARALLEL)

lint: $(CORE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(BENCH)
	$(BIN)/python -m benchmarks

docs: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir site

info: $(CORE)
	$(BIN)/stepnet info

# A stamp remembers what was installed, so a second call starts at once.
$(CORE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,plot,torch]'
	touch $@

$(BENCH): $(CORE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

$(SITE): $(CORE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) demo site build dist .mypy_cache .ruff_cache .import_linter_cache
