# Two commands do all the set-up: `make demo` and `make test`. TORCH=2.14.1 picks another torch, TRANSFORMERS=5.0.0
# another transformers.
TORCH ?= 2.13.0
TRANSFORMERS ?=
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.torch-$(TORCH)$(addprefix -transformers-,$(TRANSFORMERS))

.PHONY: demo test fuzz check bench format clean

demo: $(STAMP)
	$(BIN)/python -m sortpass demo

# Two workers with one thread each: with two threads each, OpenMP's spinning barriers make small kernels crawl.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2

# Random programs, whole against chunked: make fuzz PROGRAMS=20000, or make fuzz SECONDS=600; SEED=7 draws others.
PROGRAMS ?= 2000
SEED ?= 0
fuzz: $(STAMP)
	$(BIN)/python tests/fuzz.py --seed $(SEED) $(if $(SECONDS),--seconds $(SECONDS),--programs $(PROGRAMS))

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m sortpass bench

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# torch goes in first and by exact version: a range asked for by another package would take the newest.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet torch==$(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(if $(TRANSFORMERS),$(BIN)/python -m pip install --quiet transformers==$(TRANSFORMERS))
	rm -f $(VENV)/.torch-*
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
