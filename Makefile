# Everything runs in .venv, which `make install` creates. `make` alone lists the targets.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
WITH_DATASETS := .venv/.installed-datasets
# One process a core: the models of tests are too small for a second thread.
PARALLEL := -n auto --dist worksteal
# Without --no-compile, pip compiles modules that nothing imports, which takes minutes.
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt

# Options of a benchmark, such as OPTIONS="--only fp32 --minutes 10", OPTIONS=--quick (a fraction of the
# work) or OPTIONS=--fresh (measure again); `make bench` lists all. Options of tests are those of pytest.
OPTIONS ?=

# Tests of the interfaces of the packages that bertkit requires.
LOWEST := $(addprefix tests/,test_cli.py test_config.py commands checkpoint data/test_sentences.py \
  recipes/test_finetune.py recipes/test_pretrain.py training/test_trackers.py view/test_page.py \
  extensions/search extensions/cleaning)

.DEFAULT_GOAL := help
.PHONY: help install demo docs test test-docs test-all test-lowest check format package bench

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-21s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## create .venv and install bertkit with what tests need

# Stamps, so that nothing is installed again until what to install has changed.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP) -e '.[dev,docs]'
	touch $@

$(WITH_DATASETS): $(INSTALLED)
	$(PIP) datasets
	touch $@

demo: install ## raw text to a fine-tuned BERT on this machine, with a report (minutes)
	$(BIN)/bertkit demo

docs: install ## the documentation site, in build/docs/index.html
	$(BIN)/python -m sphinx -E -W --keep-going -q -c docs . build/docs

test: install ## the tests without the slow ones
	$(BIN)/python -m pytest -m 'not slow' $(PARALLEL) $(OPTIONS)

test-docs: install ## README, tutorial, course and guides, run as a user would
	$(BIN)/python -m pytest tests/docs $(PARALLEL) $(OPTIONS)

test-all: install ## every test
	$(BIN)/python -m pytest $(PARALLEL)

# The versions that pyproject.toml permits at least, each with a wheel. Old packages use deprecated names
# of new ones, so that warnings are no errors.
test-lowest: ## some tests with the lowest versions, in build/lowest (downloads gigabytes)
	$(PYTHON) -m venv --clear build/lowest
	build/lowest/bin/pip install --quiet --disable-pip-version-check uv
	build/lowest/bin/uv pip install --quiet --python build/lowest/bin/python --resolution lowest-direct \
	  --only-binary :all: -e '.[generation,classic,serving,search,export,cleaning,tracking]' \
	  'pytest>=8' 'hypothesis>=6.100' 'transformers>=5.3'
	build/lowest/bin/python -m pytest -m 'not slow' -W ignore::DeprecationWarning -W ignore::FutureWarning \
	  -W 'ignore:lance is not fork-safe' $(LOWEST) $(OPTIONS)

check: install ## format, lint, types, floors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/architecture

format: install ## rewrite the files as `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The time of the last commit, so that a commit always gives the same wheel.
package: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
package: install ## the wheel and the sdist, in dist
	$(BIN)/python -m build --no-isolation

# The benchmark of corpus preparation compares with datasets, which nothing else needs.
bench: $(if $(filter prepare,$(NAME)),$(WITH_DATASETS),$(INSTALLED)) ## one benchmark, such as NAME=pretrain; without NAME, list them
	$(BIN)/python -m benchmarks $(or $(NAME),--help) $(OPTIONS)
