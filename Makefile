# Every target sets up what it needs in .venv. A machine needs Python 3.11 or later, pip and make.
#
# Two stamps in .venv say what is installed: `.runtime` (enough for the demo) and `.development` (tests, lint, types).
# Each holds the folder it was made for and is older than nothing it depends on; otherwise set-up runs again.

PYTHON      ?= $(shell command -v python3.11 || command -v python3)
BIN         := .venv/bin
RUNTIME     := .venv/.runtime
DEVELOPMENT := .venv/.development

# An environment that was moved, or whose interpreter is gone, does not count, whatever its stamps say.
ifneq ($(wildcard .venv),)
ifneq ($(shell $(BIN)/python -c "print('runs')" 2>/dev/null) $(shell cat $(RUNTIME) 2>/dev/null),runs $(CURDIR))
$(shell rm -f $(RUNTIME) $(DEVELOPMENT))
endif
endif

.PHONY: help demo test test-all test-browser lint types benchmark format clean

help:
	@echo "make demo         see what Suture does, on a real model"
	@echo "make test         tests and doctests"
	@echo "make test-all     the same with the long comparisons"
	@echo "make test-browser pictures in a real browser; needs chromium"
	@echo "make lint         style and layering"
	@echo "make types        types, strict"
	@echo "make format       rewrite the sources in the project's style"
	@echo "make benchmark    speed and memory beside transformers and hand-written modules"
	@echo "make clean        remove .venv and caches"

demo: $(RUNTIME)
	@$(BIN)/suture demo

test: $(DEVELOPMENT)
	$(BIN)/python -m pytest -q -m "not long and not browser"

test-all: $(DEVELOPMENT)
	$(BIN)/python -m pytest -q -m "not browser"

test-browser: $(DEVELOPMENT)
	$(BIN)/python -m pytest -q -m browser tests/graph

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
	$(BIN)/python -m benchmarks.composition
	$(BIN)/python -m benchmarks.graph
	$(BIN)/python -m benchmarks.edits
	$(BIN)/python -m benchmarks.check
	$(BIN)/python -m benchmarks.load
	$(BIN)/python -m benchmarks.decode

clean:
	rm -rf .venv .pytest_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks

$(RUNTIME): pyproject.toml constraints.txt scripts/set-up
	@PYTHON="$(PYTHON)" scripts/set-up runtime
	@echo "$(CURDIR)" > $@

$(DEVELOPMENT): $(RUNTIME)
	@scripts/set-up development
	@touch $@
