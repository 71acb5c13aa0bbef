# Everything a newcomer and the build machine need. Each target does its own set-up.
#
#   make demo            install, then the main job: real lines, a killed leader, a killed controller, a verdict
#   make test            lint, types, layering, and every test that needs no Docker engine
#   make test-all        `make test`, and the tests that take long and rarely find what no other test finds
#   make test-spark      the data pipeline alone, with a real Spark (Java from PyPI where the machine has none)
#   make test-delta      Delta tables, with a real Delta, in an environment of its own (its jars come from Maven Central)
#   make drill           three minutes of SIGKILL to brokers, Spark's driver and executors, and an audit (docs/spark-jobs.md)
#   make test-docker     the tests in containers: the image, the compose file, bad input, faults under load
#   make test-pythons    the tests that need no processes, on every Python from 3.11 to 3.13 that this machine has
#   make soak MINUTES=10 simulated runs on all cores: random seeds and perturbed scenarios (docs/simulation.md)
#   make mutate          how soon the simulation notices that a guard is gone, for each of its mutations
#   make transcripts     write the golden transcripts again: five scenarios, message by message
#   make bench           our cluster and a real Apache Kafka, one after the other: medians and ratios
#   make bench-spark     our data source in Spark, and Spark's own Kafka connector on a real Apache Kafka

# Looked for when it is first needed, and once: an optimised Python where the machine has one.
PYTHON ?= $(eval PYTHON := $$(shell .ci/find-python))$(PYTHON)
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what it imports, as it imports it: a tenth of what is installed.
PIP_INSTALL := -m pip --disable-pip-version-check --quiet install --no-compile
INSTALL := $(BIN)/python $(PIP_INSTALL)
VENV_DELTA := .venv-delta
FOLDERS := benchmarks broker client controller pipeline protocol storage strandline testing tests
PYTEST_ARGS ?=
LEFT_OUT := not docker and not spark
CORES := $(shell getconf _NPROCESSORS_ONLN)
PROCESSES ?= $(shell echo $$(( $(CORES) < 7 ? $(CORES) + 1 : 8 )))
MINUTES ?= 10

# Compiled Python is kept, whatever the environment says: tests start hundreds of Pythons.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all lint types layering pytest test-spark test-delta drill test-docker test-pythons soak mutate transcripts bench bench-spark clean

demo: $(VENV)/.installed
	$(BIN)/strandline demo

# What looks at the code alone goes side by side, and with it what the tests with a Spark will want.
test: $(VENV)/.installed-dev
	$(MAKE) -j2 lint types layering build/spark-classes.jsa
	$(MAKE) pytest test-spark

test-all: test
	$(BIN)/python -m pytest -m "slow and $(LEFT_OUT)" -n $(PROCESSES) $(PYTEST_ARGS)

# -- set-up: a stamp per set of extras, renewed when pyproject.toml changes

$(VENV)/bin/python $(VENV_DELTA)/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 with venv was found; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(@:/bin/python=)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) 'setuptools>=77' wheel
	$(INSTALL) --no-build-isolation -e '.[dev,spark]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) -e '.[bench]'
	@touch $@ $(VENV)/.installed

# Delta goes with the PySpark that it was made for, and that need not be the one that everything else is tested with.
$(VENV_DELTA)/.installed: pyproject.toml | $(VENV_DELTA)/bin/python
	$(VENV_DELTA)/bin/python $(PIP_INSTALL) -e '.[dev,spark,delta]'
	@touch $@

# -- checks

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The sub-packages live in top-level folders; in src/ stands the package as it is installed.
types: $(VENV)/.installed-dev
	cd src && ../$(BIN)/mypy --config-file ../pyproject.toml --cache-dir ../.mypy_cache -p strandline

layering: $(VENV)/.installed-dev
	cd src && ../$(BIN)/lint-imports --config ../pyproject.toml --cache-dir ../.import_linter_cache

# A process per core and one more, since some wait; each with whole files: what a file sets up once is set up once.
pytest: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "$(LEFT_OUT) and not slow" -n $(PROCESSES) --dist loadfile $(PYTEST_ARGS)

# In processes of their own: a JVM and a session's workers disturb tests that count threads and descriptors. Two processes have the
# tests that share a Spark, the third has those that start their own (tests/pipeline/conftest.py); each of them mostly waits.
test-spark: $(VENV)/.installed-dev build/spark-classes.jsa
	$(BIN)/python -m pytest -m spark tests/pipeline -n 3 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# Half of what a JVM does until its first query is reading classes. From an archive they come ready. Without it all works the same.
build/spark-classes.jsa: $(VENV)/.installed-dev
	-$(BIN)/python tests/pipeline/class_archive.py $@

test-delta: $(VENV_DELTA)/.installed
	$(VENV_DELTA)/bin/python -m pytest tests/pipeline/test_spark_delta.py $(PYTEST_ARGS)

drill: $(VENV)/.installed-dev
	$(BIN)/python examples/pipeline/drill.py $(DRILL_ARGS)

# The image is built, brought up and removed by the tests themselves, under names and on ports of their own.
test-docker: $(VENV)/.installed-dev
	@docker info >/dev/null 2>&1 || { echo "make test-docker needs a Docker engine, and \`docker info\` does not reach one:" >&2; \
		docker info 2>&1 | tail -n 2 >&2; exit 1; }
	@docker-compose version >/dev/null 2>&1 || docker compose version >/dev/null 2>&1 || \
		{ echo "make test-docker needs docker-compose (1.29 or newer, or the plugin \`docker compose\`)" >&2; exit 1; }
	STRANDLINE_REQUIRE_DOCKER=1 $(BIN)/python -m pytest -m docker $(PYTEST_ARGS)

test-pythons:
	PYTHONS="$(PYTHONS)" .ci/test-pythons

# Runs that failed are kept in build/simulation, and come first the next time.
soak: $(VENV)/.installed
	$(BIN)/python -m strandline.testing.simulation.campaign.sweep --minutes $(MINUTES) $(SOAK_ARGS)

mutate: $(VENV)/.installed
	$(BIN)/python -m strandline.testing.simulation.campaign.hunt $(MUTATE_ARGS)

transcripts: $(VENV)/.installed
	$(BIN)/python -m strandline.testing.simulation.scenarios.transcripts --write tests/testing/simulation/transcripts

bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/compare.py $(BENCH_ARGS)

bench-spark: $(VENV)/.installed-dev $(VENV)/.installed-bench
	$(BIN)/python benchmarks/spark.py $(BENCH_ARGS)

clean:
	rm -rf $(VENV) $(VENV_DELTA) build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
