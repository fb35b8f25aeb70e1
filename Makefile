# Every target sets itself up: a virtual environment in .venv with the pinned versions of constraints.txt.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Workers share the cores, so linear algebra takes one thread in each
TEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The report and the dashboard are tested in the system's browser, which is installed where that may be done
FIND_BROWSER := (command -v chromium || command -v chromium-browser || command -v google-chrome) >/dev/null
GET_BROWSER := (test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium)

.PHONY: demo install check test coverage test-home-assistant aarch64 bench docs fuzz audit wheels fresh lowest release-check clean

demo: .venv/installed
	$(BIN)/fedfilt demo

# fedfilt as users have it
install: .venv/installed

# Format, lint, types, known vulnerabilities and the fast tests: while you work
check: .venv/tested style audit
	$(TEST) -n auto --dist loadgroup -m "not slow"

# Everything
test: .venv/tested style
	$(TEST) -n auto --dist loadgroup

# The same, counting which lines of fedfilt run: takes half as long again
coverage: .venv/tested
	$(TEST) -n auto --dist loadgroup --cov --cov-report=
	@$(BIN)/coverage report --skip-covered

# The living home in a real Home Assistant, which is installed into .venv-assistant. Needs Python 3.13 and Mosquitto
test-home-assistant: .venv/tested .venv-assistant/installed
	$(TEST) tests/flower/test_living_home.py

.PHONY: style
style: .venv/tested build/bandit
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --config-file tests/mypy.ini & tests=$$!; $(BIN)/mypy && wait $$tests

# Patterns that are often insecure: of the files that changed since they passed
SOURCES := $(shell find src -name '*.py')
build/bandit: .venv/tested pyproject.toml $(SOURCES)
	@echo "$(BIN)/bandit --configfile pyproject.toml"
	@$(BIN)/bandit --quiet --configfile pyproject.toml $(if $(filter-out $(SOURCES),$?),$(SOURCES),$?)
	@mkdir -p build && touch $@

# Known vulnerabilities of the packages in constraints.txt, asked of a public service once a day
audit: .venv/tested
	$(BIN)/python scripts/audit.py

# The files of a release in dist: a source archive, a wheel for this architecture and, on Debian, one for 64-bit ARM
wheels: .venv/released
	$(BIN)/python scripts/wheels.py

dist:
	$(MAKE) wheels

# Those files in a fresh environment of every Python here: make fresh TORCH=3.11 tries torch in that one too
fresh: .venv/released | dist
	$(BIN)/python scripts/fresh.py $(if $(TORCH),--torch $(TORCH))

# The fast tests with the lowest versions that pyproject.toml allows: make lowest ARGS="--have torch==2.13.0"
lowest: .venv/tested
	$(BIN)/python scripts/lowest.py $(ARGS)

# The checklist of CONTRIBUTING.md: make release-check ARGS="--skip tests bench"
release-check: .venv/tested .venv/released
	$(BIN)/python scripts/release.py $(ARGS)

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

.venv/released: .venv/installed
	$(PIP) --no-build-isolation --editable ".[release]"
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
	rm -rf .venv .venv-assistant build dist demo
