# The project's commands. `make demo` needs Python 3.11-3.14 and make alone, `make test` 3.11-3.13.
PYTHON ?= python3
BIN := .venv/bin
RUNTIME := .venv/runtime
INSTALLED := .venv/installed
PIP = $(BIN)/pip install --quiet --no-compile --constraint requirements.lock
COMPILE = $(BIN)/python -m compileall -qq --workers 0 .venv/lib || true # pip itself takes one core
export PYTHONDONTWRITEBYTECODE := # the demo compiles what it imports, and nothing else
CONFIG ?= configs/demo.yaml
MUTATION := build/mutation
AXE := axe-playwright-python==0.1.8

.PHONY: demo test check docs serve bench long mutants containers lock clean
.DEFAULT_GOAL := demo

$(RUNTIME): requirements.lock pyproject.toml setup.py
	$(PYTHON) -m venv .venv
	$(PIP) setuptools
	$(PIP) --no-build-isolation --editable '.[all,fast]'
	$(BIN)/medclip --schema >configs/schema.json
	touch $@

$(INSTALLED): $(RUNTIME) hospital/pyproject.toml
	$(PIP) --requirement requirements.lock
	$(PIP) --no-build-isolation --no-deps --editable ./hospital
	$(BIN)/pip install --quiet --no-deps --upgrade --target .venv/axe $(AXE) # one file of it: no browser driver
	$(COMPILE)
	touch $@

demo: $(RUNTIME) ## every stage on generated studies, then a report
	$(BIN)/medclip run $(CONFIG) $(RUN)

test: $(INSTALLED) ## all tests but those of `make check`, in two processes, files that take long first
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --ignore tests/house \
	  hospital/tests tests/pipelines tests/api tests

check: $(INSTALLED) ## format, lint, types, layers, budgets, conventions, the package
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/house

serve: $(RUNTIME) ## the service and its viewer, on the demo's model
	$(BIN)/medclip serve

bench: $(INSTALLED) ## every benchmark but that of a GPU, in full
	for name in $$($(BIN)/python -m benchmarks --list | sed 's/ gpu / /'); do $(BIN)/python -m benchmarks.$$name || exit 1; done

long: $(INSTALLED) ## the counts that take hours; results are kept in benchmarks/results
	$(BIN)/python -m benchmarks --long

mutants: $(INSTALLED) ## make mutants MODULE=x.py TESTS=test_x.py: wrong changes to code that its tests do not notice
	test -d $(MUTATION)/lib || $(BIN)/python -m pip install --quiet --target $(MUTATION)/lib 'cosmic-ray>=8.7,<9'
	rm -rf $(MUTATION)/tree && mkdir -p $(MUTATION)/tree && git archive HEAD | tar -x -C $(MUTATION)/tree
	sed 's|MODULE|$(MODULE)|; s|TESTS|$(TESTS)|; s|PYTHON|$(CURDIR)/$(BIN)/python|' tests/mutation.toml >$(MUTATION)/tree/mutation.toml
	cd $(MUTATION)/tree && export PYTHONPATH=$(CURDIR)/$(MUTATION)/tree:$(CURDIR)/$(MUTATION)/lib && \
	  for step in init exec; do ../lib/bin/cosmic-ray $$step mutation.toml ../session.sqlite || exit 1; done && \
	  ../lib/bin/cr-report ../session.sqlite --show-pending

docs: $(INSTALLED) ## figures, and the machines of results, then the site
	$(BIN)/python -m docs.tables
	$(BIN)/python docs/figures.py
	$(BIN)/python -c 'import material, mkdocstrings' 2>/dev/null || \
	  { $(BIN)/python -m pip install --quiet 'pip>=25.1' && $(BIN)/python -m pip install --quiet --group docs; }
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

containers: $(INSTALLED) ## docker/ built and run by real engines, as its page says; needs root and the demo
	$(BIN)/python -m tests.containers --engine docker --full
	$(BIN)/python -m tests.containers --engine podman --full

lock: ## write requirements.lock again
	$(PYTHON) -m venv .venv-lock && .venv-lock/bin/pip install --quiet uv
	bash .ci/lock .venv-lock/bin/uv
	rm -rf .venv-lock

clean: ## remove what the demo made
	rm -rf runs
