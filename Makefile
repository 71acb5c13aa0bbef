# The commands for newcomers and the build machine. Each target does its own set-up.
#
#   make demo            install, then run the demo: real log lines, a killed leader, a killed controller, a verdict
#   make test            lint, types, layering, the tests that need no Docker engine, and of the pipeline its source and sink
#   make test-all        `make test`, and the tests marked `slow`, which rarely find what no other test finds
#   make test-spark      the whole data pipeline, with a real Spark (and Java from PyPI if the machine has none)
#   make test-spark-jobs what of it is not in `make test`: the jobs over the log, and tests that start a Spark of their own
#   make test-pages      type the pages of the documentation: every command prints what its page shows, every program type-checks
#   make test-delta      Delta tables with a real Delta, in a separate environment (the jars come from Maven Central)
#   make drill           kill brokers, Spark's driver and executors for three minutes, then audit (docs/spark-jobs.md)
#   make test-docker     the tests in containers: the image, the compose file, bad input, faults under load
#   make test-kafka      test suites of others against Strandline: Kafka's clients in Go, C and Python (tests/kafka/suites)
#   make test-pythons    the tests without processes, on every installed Python from 3.11 to 3.13
#   make test-stalls     the tests while their processes are stopped again and again, as on a busy machine
#   make docs            the documentation site: build/site/index.html, to be opened in a browser or served
#   make soak MINUTES=10 simulated runs on all cores: random seeds and perturbed scenarios (docs/simulation.md)
#   make mutate          measure how soon the simulation detects each mutation, which removes one guard
#   make transcripts     write the golden transcripts of five scenarios, message by message
#   make bench           benchmark Strandline, then a real Apache Kafka: medians and ratios
#   make bench-spark     benchmark Strandline's data source in Spark, and Spark's Kafka connector with a real Apache Kafka

# Found once, when it is first needed: an optimised Python if the machine has one.
PYTHON ?= $(eval PYTHON := $$(shell .ci/find-python))$(PYTHON)
VENV := .venv
BIN := $(VENV)/bin
# Python compiles modules when it imports them, which is a tenth of the installed ones.
PIP_INSTALL := -m pip --disable-pip-version-check --quiet install --no-compile
INSTALL := $(BIN)/python $(PIP_INSTALL)
# uv installs the same packages in half of the time. It does not read pip's configuration: if that names an index, pip installs.
UV_INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python
VENV_DELTA := .venv-delta
FOLDERS := benchmarks broker client controller pipeline protocol storage strandline testing tests
PYTEST_ARGS ?=
LEFT_OUT := not docker and not spark and not suite and not page
IN_CONTAINERS := docker and not slow
# Tests in containers wait most of the time. Two clusters disturb each other little, three would.
CLUSTERS ?= 2
SOURCE_AND_SINK := $(addprefix tests/pipeline/test_spark_,read.py sink.py stream.py)
SPARK_TESTS ?= tests/pipeline
CORES := $(shell getconf _NPROCESSORS_ONLN)
PROCESSES ?= $(shell echo $$(( $(CORES) < 6 ? $(CORES) + 2 : 8 )))
MINUTES ?= 10

# Keep compiled Python even if the environment forbids it, because tests start hundreds of Pythons.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all compiled lint types layering pytest test-spark test-spark-jobs test-pages test-delta drill test-docker test-kafka test-kafka-short test-pythons test-stalls docs soak mutate transcripts bench bench-spark clean

demo: $(VENV)/.installed
	$(BIN)/strandline demo

# The checks of the code run in parallel with the class archive for the tests with Spark.
test: $(VENV)/.installed-dev
	$(MAKE) -j2 compiled lint types layering build/spark-classes.jsa
	$(MAKE) pytest
	$(MAKE) test-spark SPARK_TESTS="$(SOURCE_AND_SINK)"

test-all: test test-spark-jobs test-pages
	$(BIN)/python -m pytest -m "slow and $(LEFT_OUT)" --timeout 3600 -n $(PROCESSES) $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m "slow and spark" --timeout 3600 tests/pipeline $(PYTEST_ARGS)
	ALL_EXAMPLES=1 $(BIN)/python -m pytest $$(grep -l "^from thorough" tests/*/test_*.py) -n $(PROCESSES) $(PYTEST_ARGS)
	if docker info >/dev/null 2>&1; then $(MAKE) test-docker IN_CONTAINERS="docker and slow" PYTEST_ARGS="--timeout 3600 $(PYTEST_ARGS)"; fi

# -- set-up: one stamp file per set of extras; a change of pyproject.toml makes it out of date

$(VENV)/bin/python $(VENV_DELTA)/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 with venv was found; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(@:/bin/python=)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) 'setuptools>=77' wheel uv
	@if $(BIN)/python -m pip config list | grep -q index || ! $(UV_INSTALL) --no-build-isolation -e '.[dev,spark]'; then \
		$(INSTALL) --no-build-isolation -e '.[dev,spark]'; fi
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-bench: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) -e '.[bench]'
	@touch $@ $(VENV)/.installed

# Delta needs the PySpark version that it was built for, which may differ from the one of the other tests.
$(VENV_DELTA)/.installed: pyproject.toml | $(VENV_DELTA)/bin/python
	$(VENV_DELTA)/bin/python $(PIP_INSTALL) -e '.[dev,spark,delta]'
	@touch $@

# -- checks

# Python compiles what it imports. Several processes that collect all tests at the same time would each compile everything: the
# tests, the package, pandas. What is wrong with the collection, `pytest` says.
compiled: $(VENV)/.installed-dev
	-@$(BIN)/python -m pytest --collect-only -q -m "$(LEFT_OUT)" >/dev/null

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The sub-packages are top-level folders; src/ contains the package as it is installed.
types: $(VENV)/.installed-dev
	cd src && ../$(BIN)/mypy --config-file ../pyproject.toml --cache-dir ../.mypy_cache -p strandline

layering: $(VENV)/.installed-dev
	cd src && ../$(BIN)/lint-imports --config ../pyproject.toml --cache-dir ../.import_linter_cache

# One process per core and two more, because tests wait: with one more, the cores were idle for a fifth of the time. A file's tests
# run in one process, so its fixtures are set up once.
pytest: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "$(LEFT_OUT) and not slow" -n $(PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# Not part of any other target: it finds tests with limits that are too short for a busy machine, and takes half as long again.
test-stalls: $(VENV)/.installed-dev
	$(BIN)/python tests/house/stalls.py --tree $(BIN)/python -m pytest -m "$(LEFT_OUT) and not slow" -n $(PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# Separate from `pytest`, because most start a cluster each, and none has a fixture that is worth sharing.
test-pages: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m page tests/house tests/testing/kit/test_kit_docs.py -n $(PROCESSES) --dist load $(PYTEST_ARGS)

# Separate from `pytest`, because a JVM and its workers disturb tests that count threads and descriptors. The tests share three
# Sparks, but for those that start their own (tests/pipeline/conftest.py).
test-spark: $(VENV)/.installed-dev build/spark-classes.jsa
	$(BIN)/python -m pytest -m "spark and not slow" $(SPARK_TESTS) -n 3 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-spark-jobs:
	$(MAKE) test-spark SPARK_TESTS="tests/pipeline $(addprefix --ignore=,$(SOURCE_AND_SINK))"

# A JVM spends half of the time until its first query on reading classes; the archive avoids this. The tests work without it too.
build/spark-classes.jsa: $(VENV)/.installed-dev
	-$(BIN)/python tests/pipeline/class_archive.py $@

test-delta: $(VENV_DELTA)/.installed
	$(VENV_DELTA)/bin/python -m pytest tests/pipeline/test_spark_delta.py $(PYTEST_ARGS)

drill: $(VENV)/.installed-dev
	$(BIN)/python examples/pipeline/drill.py $(DRILL_ARGS)

# The tests build the image, start the containers and remove them, with names and ports of their own.
test-docker: $(VENV)/.installed-dev
	@docker info >/dev/null 2>&1 || { echo "make test-docker needs a Docker engine, and \`docker info\` does not reach one:" >&2; \
		docker info 2>&1 | tail -n 2 >&2; exit 1; }
	@docker-compose version >/dev/null 2>&1 || docker compose version >/dev/null 2>&1 || \
		{ echo "make test-docker needs docker-compose (1.29 or newer, or the plugin \`docker compose\`)" >&2; exit 1; }
	STRANDLINE_REQUIRE_DOCKER=1 $(BIN)/python -m pytest -m "$(IN_CONTAINERS)" -n $(CLUSTERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# They download what they need from Go's module proxy, PyPI and crates.io, once, to ~/.cache/strandline-kafka-suites. What a machine
# lacks (gcc, Java) leaves the suites out that need it. The short form runs the most telling tests.
test-kafka: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m suite --timeout 3600 tests/kafka/test_kafka_tools.py $(PYTEST_ARGS)
	$(BIN)/python tests/kafka/compare_with_kafka.py --rounds 30
	$(BIN)/python tests/kafka/suites/all.py $(SUITES)

test-kafka-short: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "suite and not slow" tests/kafka/test_kafka_tools.py $(PYTEST_ARGS)
	$(BIN)/python tests/kafka/suites/all.py --short $(SUITES)

test-pythons:
	PYTHONS="$(PYTHONS)" .ci/test-pythons

# Without a network. `make test` builds the site, too (tests/house/test_site.py); a broken link or anchor fails it.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# Failed runs are kept in build/simulation, and the next soak repeats them first.
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
