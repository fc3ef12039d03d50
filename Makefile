# Every target needs only Python 3.11 or newer and make; the environment is made when it is missing.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# The work is split over processes, one core each; a threaded BLAS would only fight them.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
# Compiled modules are kept, also where the environment says no: tests start some hundred interpreters.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: figures studies theorems test test-quick test-exhaustive test-lowest test-newest run-newest test-browser test-trainers test-gpu lint docs dist bench bench-gpu freeze clean
.DEFAULT_GOAL := figures

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# The same with all that tests can use, installed at once.
$(VENV)/.everything: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,browser,trainers,docs]'
	touch $(VENV)/.installed $(VENV)/.browser $(VENV)/.trainers $(VENV)/.docs $@

$(VENV): $(VENV)/.installed

figures: $(VENV)/.installed
	$(BIN)/python -m experiments.all

# Longer sweeps; each goes on where it was stopped.
studies: $(VENV)/.installed
	$(BIN)/python -m experiments.studies

theorems: $(VENV)/.installed
	$(BIN)/python -m experiments.family_search
	$(BIN)/python -m experiments.every_p
	$(BIN)/python -m experiments.theorems
	$(BIN)/python -m experiments.every_p_bounds
	$(BIN)/python -m experiments.tables

# By files, so that what the cases of one share is made once.
test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist loadfile

# One case of each test, and none of the slow ones: for the everyday loop.
test-quick: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --quick

test-exhaustive: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m exhaustive

# Quick tests with the lowest versions that pyproject.toml allows, and on the newest Python that is here with the
# newest packages; without PyTorch, whose wheels for these are large.
test-lowest: $(VENV)-lowest/.installed
	$(<D)/bin/python -m pytest -n 2 --quick

$(VENV)-lowest/.installed: $(VENV)/.installed
	$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(@D)
	grep -oE '"[A-Za-z_-]+>=[0-9.]+"' pyproject.toml | tr -d '"' | sed 's/>=/==/' > $(@D)/lowest
	$(BIN)/uv pip install --quiet --python $(@D) --editable '.[test]' --constraints $(@D)/lowest
	touch $@

NEWEST_PYTHON = $(shell .ci/pythons 12 | tail -n 1)
test-newest:
	$(if $(NEWEST_PYTHON),$(MAKE) run-newest,@echo "no Python newer than 3.11 is here, so none is tested")

run-newest: $(VENV)-newest/.installed
	$(<D)/bin/python -m pytest -n 2 --quick

$(VENV)-newest/.installed: $(VENV)/.installed
	$(BIN)/uv venv --quiet --clear --python $(NEWEST_PYTHON) $(@D)
	$(BIN)/uv pip install --quiet --python $(@D) --editable '.[test]'
	touch $@

$(VENV)/.browser: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[browser]'
	touch $@

# Pages in a real browser; where there is no chromium, or no driver of it, they are skipped, and say so.
test-browser: $(VENV)/.browser
	$(BIN)/python -m pytest tests/browser -rs

$(VENV)/.trainers: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[trainers]'
	touch $@

# In the training loops of Hugging Face and Lightning, and with runs of other libraries.
test-trainers: $(VENV)/.trainers
	$(BIN)/python -m pytest tests/pytorch/test_trainers.py tests/pytorch/test_foreign.py -rs

# On a machine with a GPU, by the Python that has PyTorch and Triton for it; nothing is installed. Each test is named
# as it ends, for machines that are lent for minutes.
GPU_PYTHON ?= python3
# Processes that share the GPU.
GPU_WORKERS ?= 8
test-gpu:
	$(GPU_PYTHON) -m pytest tests -vv -m gpu -rs -n $(GPU_WORKERS) --dist worksteal -p no:benchmark

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python -m tests.house.files

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

# The site, in build/site; a warning, as of a link that leads nowhere, is an error.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs build/site

# What a release is: built, and tried in empty environments of all Pythons that are here.
dist: $(VENV)/.installed
	.ci/dist

$(VENV)/.bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@

# Digests of all bits, into FILE: before and after a change that keeps them.
freeze: $(VENV)/.everything
	$(BIN)/python -m tests.freeze $(or $(FILE),$(error say where: make freeze FILE=before.txt))

bench: $(VENV)/.bench
	$(BIN)/python -m tests.benchmarks.calls
	$(BIN)/python -m tests.benchmarks
	$(BIN)/python -m tests.benchmarks.algorithms

# The same; on a CPU it runs through in miniature, and shows no speed.
bench-gpu:
	$(GPU_PYTHON) -m tests.benchmarks.gpu

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-newest build *.egg-info .mypy_cache .ruff_cache .pytest_cache
