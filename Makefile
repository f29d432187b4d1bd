# DFlash Lab. `make run` opens the page, `make test` runs the tests; `make help` lists the rest.
# Written for GNU make 3.81 (macOS) and newer.

PYTHON ?= python3
VENV ?= .venv
# The tested versions; `make run CONSTRAINTS=` takes the newest that requirements.txt allows (`make clean` first).
CONSTRAINTS ?= constraints.txt
# For `make run`: arguments of app.py. For `make test`: arguments of pytest.
ARGS ?=
# Processes that share the tests; 0 runs them in one.
WORKERS ?= 2
# glibc's malloc would hand large blocks back at once: clearing them anew takes half the time of the statistical tests.
TEST_MALLOC := MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4000000000
# The browser that the tests drive; looked for when not given.
CHROMIUM ?=

SHELL := /bin/sh
PY := $(VENV)/bin/python
RUN_STAMP := $(VENV)/.installed-run
DEV_STAMP := $(VENV)/.installed-dev
PREPARE_WEIGHTS := $(PY) -m dflash_core.weights

PIP_DISABLE_PIP_VERSION_CHECK ?= 1
GRADIO_ANALYTICS_ENABLED ?= False
export PIP_DISABLE_PIP_VERSION_CHECK GRADIO_ANALYTICS_ENABLED

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# With -j too: the targets share one environment, and their outputs shall not mix.
.NOTPARALLEL:
.PHONY: help run test check format format-check lint types weights install install-dev clean

help:
	@echo "make run      set up what is missing and open the page at http://127.0.0.1:7860 (ARGS='--help' lists options)"
	@echo "make test     all tests (ARGS='-k NAME' for some)"
	@echo "make check    format, lint, types and all tests: what CI runs"
	@echo "make format   put the code into the project's format"
	@echo "make weights  prepare the embedded models; make install / install-dev: the environment alone"
	@echo "make clean    remove the environment and all caches in this folder"
	@echo "Another Python: make clean, then make run PYTHON=python3.12"

# Another pair, or only the help, needs no embedded weights.
NEEDS_WEIGHTS = $(if $(filter --pair% --target% --help -h,$(ARGS)),true,$(PREPARE_WEIGHTS))

run: $(RUN_STAMP)
	@$(NEEDS_WEIGHTS) || echo "The embedded models are not ready (reason above). The page opens all the same, on a recorded run; 'make weights' tries again."
	@echo "Starting the page (Ctrl-C stops it)"
	@$(PY) app.py $(ARGS)

weights: $(RUN_STAMP)
	@$(PREPARE_WEIGHTS)

test: $(DEV_STAMP)
	@$(PREPARE_WEIGHTS) || echo "The embedded models are not ready (reason above): the tests that need them are skipped."
	@$(FIND_CHROMIUM); $(TEST_MALLOC) $(PY) -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

check: format-check lint types test

format-check: $(DEV_STAMP)
	@$(PY) -m ruff format --check . || { echo "'make format' puts this right."; exit 1; }

lint: $(DEV_STAMP)
	@$(PY) -m ruff check .

types: $(DEV_STAMP)
	@$(PY) -m mypy

format: $(DEV_STAMP)
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

clean:
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .gradio test-results
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment ------------------------------------------------------------------------------------------------
# A stamp is written last, so an interrupted install is taken up again by the next `make`.

install: $(RUN_STAMP)
install-dev: $(DEV_STAMP)

$(RUN_STAMP): requirements.txt $(CONSTRAINTS)
	@rm -f $(RUN_STAMP) $(DEV_STAMP)
	@$(PY) -m pip --version >/dev/null 2>&1 || { $(CHECK_PYTHON) && $(PYTHON) -m venv --clear $(VENV); }
	@echo "Installing what the page needs into $(VENV). PyTorch is large: this takes minutes the first time."
	@set -- -r requirements.txt; $(PIP_INSTALL)
	@touch $@

$(DEV_STAMP): $(RUN_STAMP) requirements-dev.txt requirements-reference.txt
	@rm -f $(DEV_STAMP)
	@echo "Installing what the checks need."
	@set -- -r requirements.txt -r requirements-dev.txt; $(PIP_INSTALL)
	@set -- --no-deps -r requirements-reference.txt; $(PIP_INSTALL)
	@touch $@

define CHECK_PYTHON
{ command -v $(PYTHON) >/dev/null 2>&1 || { \
    echo "There is no '$(PYTHON)'. DFlash Lab needs Python 3.10 to 3.13; with one of another name: make run PYTHON=python3.12"; exit 1; }; \
  $(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { \
    echo "'$(PYTHON)' is $$($(PYTHON) --version 2>&1). DFlash Lab needs Python 3.10 to 3.13; with one of another name: make run PYTHON=python3.12"; exit 1; }; \
  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
    echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: sudo apt-get install python3-venv"; exit 1; }; }
endef

# Shows only the large downloads out of pip's output; errors come unfiltered. pip's exit status is kept in a file,
# since a pipe gives that of its last command.
define PIP_INSTALL
rm -f $(VENV)/.pip-status; \
{ $(PY) -m pip install --no-input $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) "$$@"; echo $$? >$(VENV)/.pip-status; } | awk ' \
  /^ *Downloading .*[(][0-9.]+ GB[)]/ || /^ *Downloading .*[(][0-9][0-9][0-9.]* MB[)]/ { \
    sub(/.*\//, "", $$2); sub(/-(cp|py)[0-9].*/, "", $$2); print "  downloading", $$2, $$3, $$4; fflush() }; \
  /^Installing collected packages/ { print "  unpacking"; fflush() }'; \
exit "$$(cat $(VENV)/.pip-status)"
endef

# --- the browser ----------------------------------------------------------------------------------------------------
# Sets and exports CHROMIUM: a Chromium or Chrome on the PATH, the one of macOS, or Playwright's own.
PLAYWRIGHT_CHROMIUM := import playwright.sync_api as a; p = a.sync_playwright().start(); print(p.chromium.executable_path); p.stop()

define FIND_CHROMIUM
CHROMIUM='$(CHROMIUM)'; \
for name in chromium chromium-browser google-chrome google-chrome-stable \
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" /Applications/Chromium.app/Contents/MacOS/Chromium; do \
  [ -n "$$CHROMIUM" ] || CHROMIUM=$$(command -v "$$name" || true); \
done; \
[ -n "$$CHROMIUM" ] || CHROMIUM=$$($(PY) -c '$(PLAYWRIGHT_CHROMIUM)'); \
[ -x "$$CHROMIUM" ] || CHROMIUM=; \
export CHROMIUM; \
if [ -n "$$CHROMIUM" ]; then echo "Browser for the tests: $$CHROMIUM"; \
else echo "No Chromium found: the browser tests are skipped. To get one: $(PY) -m playwright install chromium, or your system's chromium package."; fi
endef
