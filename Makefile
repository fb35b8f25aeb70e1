# Every target sets itself up: a virtual environment in .venv with the pinned versions of constraints.txt.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Workers share the cores, so linear algebra takes one thread in each
TEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The report and the dashboard are tested in the system's browser, which is installed where that may be done
FIND_BROWSER := (command -v chromium || command -v chromium-browser || command -v google-chrome) >/dev/null
GET_BROWSER := (test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium)

.PHONY: demo check test test-home-assistant aarch64 bench docs fuzz clean

demo: .venv/installed
	$(BIN)/fedfilt demo

# Format, lint, types and the fast tests: while you work
check: .venv/tested style
	$(TEST) -n auto --dist loadgroup -m "not slow"

# Everything
test: .venv/tested style
	$(TEST) -n auto --dist loadgroup --cov --cov-report=
	@echo "coverage: $$($(BIN)/coverage report --format=total) % of the lines of fedfilt"

# The living home in a real Home Assistant, which is installed into .venv-assistant. Needs Python 3.13 and Mosquitto
test-home-assistant: .venv/tested .venv-assistant/installed
	$(TEST) tests/flower/test_living_home.py

.PHONY: style
style: .venv/tested
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --config-file tests/mypy.ini & tests=$$!; $(BIN)/mypy && wait $$tests

# The native core on 64-bit ARM, under qemu. Debian only: cross compiler, qemu, arm64 Python go into build/aarch64
aarch64: .venv/tested
	$(BIN)/python tests/aarch64.py --round

# Search for inputs that break a reader of outside bytes: make fuzz MINUTES=10 TARGETS="wire messages"
MINUTES ?= 1
fuzz: .venv/tested
	$(PIP) atheris || echo "No atheris for this Python: the search is not guided by coverage."
	$(BIN)/python tests/fuzz.py $(TARGETS) --minutes $(MINUTES)

bench: .venv/benched
	failed=0; for table in mix round networks growth plan dashboard; do $(BIN)/python benchmarks/$$table.py || failed=1; done; exit $$failed

# The site, in build/docs: no warnings, and every link inside it leads somewhere
docs: .venv/documented
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --nitpicky --fresh-env --quiet --doctree-dir build/doctrees docs build/docs
	$(BIN)/python docs/_ext/links.py build/docs

.venv/installed: pyproject.toml constraints.txt setup.py $(wildcard src/fedfilt/native/*.cpp src/fedfilt/native/*.h)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) setuptools
	$(PIP) --no-build-isolation --editable ".[dashboard]"
	touch $@

.venv/tested: .venv/installed
	$(PIP) --no-build-isolation --editable ".[test]"
	@$(FIND_BROWSER) || $(GET_BROWSER) || echo "No Chrome or Chromium: the tests in a browser will be skipped."
	touch $@

.venv-assistant/installed: tests/home_assistant.py
	$(BIN)/python tests/home_assistant.py .venv-assistant

.venv/documented: .venv/installed
	$(PIP) --no-build-isolation --editable ".[docs]"
	touch $@

.venv/benched: .venv/installed
	$(PIP) --no-build-isolation --editable ".[bench]"
	@$(FIND_BROWSER) || $(GET_BROWSER) || echo "No Chrome or Chromium: benchmarks/dashboard.py will not run."
	touch $@

clean:
	rm -rf .venv .venv-assistant build demo
