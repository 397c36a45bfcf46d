# make, make help: list the targets. Everything runs in .venv; no activation is needed.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

# The first Python that is new enough; override with make PYTHON=...
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
    $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

BIN := .venv/bin
# Some containers set it: each process that a test starts, and each worker, would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE
# Tests of one xdist group share a worker, so that Spark starts one JVM and not four. Many tests wait
# for brokers: four workers keep two cores busy.
PYTEST := $(BIN)/python -m pytest -n 4 --dist loadgroup
# These targets install Java and compile kernels: tests that miss one of them fail instead of being skipped.
NEEDS := java,kernels,etcd
# Each package of kernels has its own shared object, beside its sources.
KERNELS := src/reput/*/kernels

# Duration of attacks by hostile clients, with requests of remoting and with gRPC calls: half with default settings, half with everything
# switched on, or with access control.
REPUT_HOSTILE_SECONDS ?= 3600

# Number of runs of replication with faults.
REPUT_FAULT_SEEDS ?= 200
FAULT_OPTIONS ?= --seeds $(REPUT_FAULT_SEEDS)

# The newest PySpark of each minor version before that of .venv; tests/spark/test_versions.py has them, too.
SPARK_VERSIONS := 4.0.5 4.1.4 4.2.0
SPARK_ENVIRONMENTS := $(foreach v,$(SPARK_VERSIONS),.venv-spark-$(basename $(v)))

# Tests start hundreds of processes, and each would compile all of its sources again.
export PYTHONDONTWRITEBYTECODE :=

# Spark workers run this Python, not the first one on PATH.
export PYSPARK_PYTHON := $(abspath $(BIN)/python)

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: .venv/.installed .venv/.kernels ## Create .venv and install reput with everything for development

.venv/.installed: pyproject.toml hatch_build.py
	@test -n "$(PYTHON)" || { echo "reput needs Python 3.11 or later; set PYTHON=/path/to/python3" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[all,dev,docs]'
	@touch $@

# For the demo alone: no tools of development.
.venv/.demo: pyproject.toml hatch_build.py $(shell find src -name '*.py')
	@test -n "$(PYTHON)" || { echo "reput needs Python 3.11 or later; set PYTHON=/path/to/python3" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check '.[spark]'
	@touch $@

# An editable install loads the shared objects from the source folders: rebuild them with their sources.
# With the reference implementation, an import of the package compiles nothing.
.venv/.kernels: .venv/.installed $(wildcard $(KERNELS)/*.py src/reput/format/*.py src/reput/grpc/wire/*.py)
	REPUT_KERNELS=reference $(BIN)/python -c 'from reput.format.kernels import build; build.build_all("src")'
	@touch $@

jdk: ## Check for a Java that Spark can use; install one where that is possible
	@scripts/ensure-jdk

# Java and Maven, and an etcd for several controllers.
jdk-dev:
	@scripts/ensure-jdk --dev
	@scripts/ensure-etcd >/dev/null

run: jdk $(if $(wildcard .venv/.installed),venv,.venv/.demo) ## Install, then run a broker, send and consume, and report on its store with Spark
	$(BIN)/python -m demo

# Tests wait now and then, so the checks run beside them. Each worker has files of its own, see tests/shards.py.
test: jdk-dev venv ## Install, then lint, types, layers and all tests
	@($(MAKE) --no-print-directory lint types layers >.venv/checks 2>&1; code=$$?; cat .venv/checks; exit $$code) & \
	REPUT_TEST_NEEDS=$(NEEDS) $(BIN)/python -m pytest -n 5 --dist each --durations=10; code=$$?; \
	wait $$! || { echo 'lint, types or layers failed, see above' >&2; exit 1; }; exit $$code

# Without the tests of the Spark package, which take a third of the time of all unit tests.
# Stores of these tests are in a file system in memory, if there is one: a sync costs nothing there.
CHECK_FOLDER := $(shell test -d /dev/shm && test -w /dev/shm && echo /dev/shm/reput-check-$$(id -u))
check: venv lint types layers ## Check while you work: lint, types, layers, unit tests, scripts, documents
	$(BIN)/python -m pytest -n 2 --dist loadgroup -q -m "not spark and not slow" \
	    $(addprefix --basetemp=,$(CHECK_FOLDER)) --ignore=tests/unit/spark tests/unit tests/scripts tests/docs
	@rm -rf $(CHECK_FOLDER)

# A small separate environment: no Spark, no Java, no compiler; kernels are plain Python.
QUICK := .venv-quick/bin/python
QUICK_TOOLS := $(shell sed -nE 's/^    "((pytest|pytest-asyncio|pytest-xdist|hypothesis)==[0-9.]+)".*/\1/p' pyproject.toml)
QUICK_TESTS := tests/unit/format tests/unit/store/tables tests/unit/remoting/test_connection.py \
    tests/unit/namesrv/test_route_table.py tests/unit/broker/processors tests/unit/client/core

.venv-quick/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "reput needs Python 3.11 or later; set PYTHON=/path/to/python3" >&2; exit 1; }
	test -x $(QUICK) || $(PYTHON) -m venv .venv-quick
	REPUT_WHEEL=pure $(QUICK) -m pip install -q --no-compile --disable-pip-version-check -e '.[server]' $(QUICK_TOOLS)
	@touch $@

quick: .venv-quick/.installed ## From a clone to a first green test in a minute: unit tests with kernels in plain Python
	REPUT_KERNELS=reference $(QUICK) -m pytest -q -n 2 -m "not slow and not spark and not interop" \
	    --ignore-glob='*/kernels/*' $(QUICK_TESTS)

t: venv ## Run the tests that your change affects first, in seconds
	@$(BIN)/python scripts/affected_tests.py

fmt: venv ## Format the code and fix what can be fixed
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

lint: venv ## Check style and format, and the language of docstrings and documents
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python scripts/check_prose.py

types: venv ## Check types of the package, and of programs that use it
	$(BIN)/python -m mypy
	$(BIN)/python -m mypy --strict tests/programs/*.py $$(find examples -name '*.py')

layers: venv ## Check who imports whom
	$(BIN)/lint-imports

# MkDocs announces its successor with a line that is no warning of this site.
docs: venv ## Build the documents as a site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: jdk venv ## Run the benchmarks; JSON goes to stdout
	$(BIN)/python -m benchmarks

soak: jdk-dev venv ## Run property, damage, kill, fault and hostile tests for long (five hours or so)
	REPUT_TEST_NEEDS=$(NEEDS) REPUT_SOAK=1 $(PYTEST) --hypothesis-profile=soak
	REPUT_TEST_FAST_PATH=off $(PYTEST) tests/unit/broker
	sh -c "trap '' INT QUIT HUP; exec $(PYTEST) tests/unit/cli tests/docs"  # as a job in the background
	$(MAKE) faults
	$(MAKE) hostile

# A line for each seed: a pair of brokers with faults under load, and the check of its history.
faults: venv ## Play replication with faults for REPUT_FAULT_SEEDS seeds (200), 25 s each
	cd tests && $(abspath $(BIN))/python -m faults.run $(FAULT_OPTIONS)

# Virtual time: a second of a processor for each seed of 40 s.
SEEDS ?= 100
sim: venv ## Simulate clusters with SEEDS seeds (100), from that of today on
	cd tests && $(abspath $(BIN))/python -m sim.run --seeds $(SEEDS)
	cd tests && $(abspath $(BIN))/python -m sim.run --elections --seeds $(SEEDS)

sim-faults: venv ## Put faults in by hand, and count the seeds until the simulation finds each
	cd tests && $(abspath $(BIN))/python -m sim.faults
	cd tests && $(abspath $(BIN))/python -m sim.election_faults

# Alone, one process: other tests would be the noise that stalls of processes are measured against.
hostile: venv ## Let hostile clients attack servers in processes for REPUT_HOSTILE_SECONDS (3600)
	REPUT_HOSTILE_SECONDS=$(REPUT_HOSTILE_SECONDS) $(BIN)/python -m pytest -m hostile tests/hostile

# It has idle priority. An interrupted run is continued.
mutants: jdk-dev venv ## Break the source in 300 places, and find which tests notice (a day)
	$(BIN)/python scripts/mutants.py run
	$(BIN)/python scripts/mutants.py report

interop-all: jdk-dev venv ## Run the tests against every RocketMQ version
	REPUT_TEST_NEEDS=$(NEEDS) REPUT_INTEROP=all $(PYTEST) -m interop

nightly: jdk-dev venv ## Run a seventh of soak, faults, hostile and interop-all, chosen by the weekday
	$(BIN)/python scripts/nightly.py

# Its own interpreter runs the tests of each version, and starts Spark's workers. Older PySparks leave
# sockets to the garbage collector, which is an error in our own tests.
spark-versions: jdk venv $(SPARK_ENVIRONMENTS:=/.installed) ## Run the Spark tests with each PySpark since 4.0, in environments of their own
	REPUT_SPARK_VERSIONS=all $(BIN)/python -m pytest tests/spark/test_versions.py
	for environment in $(SPARK_ENVIRONMENTS); do \
	    PYSPARK_PYTHON=$$PWD/$$environment/bin/python \
	        $$environment/bin/python -m pytest -m "not soak" -W ignore::ResourceWarning \
	        -W ignore::pytest.PytestUnraisableExceptionWarning tests/spark || exit 1; \
	done

.venv-spark-%/.installed: pyproject.toml scripts/spark_environment.py
	$(BIN)/python scripts/spark_environment.py $(filter $*.%,$(SPARK_VERSIONS))
	@touch $@

spark-jar: jdk-dev venv ## Compile the accelerator of Spark into build/
	$(BIN)/python -m reput.spark.accelerator --folder build

clean: ## Remove caches and build output; .venv and its like stay
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f $(KERNELS)/*.so .venv/.kernels
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help venv jdk jdk-dev run test check quick t fmt lint types layers docs bench soak faults sim sim-faults mutants hostile interop-all nightly spark-versions spark-jar clean
