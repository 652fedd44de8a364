PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
# The tests of `make check`, which `make test` does not repeat.
RULES := tests/test_architecture.py tests/test_public_api.py tests/test_colours_match.py
# A run of all tests fails where one of these was not tried.
STORES := memory,sqlite,redis,redis6,valkey,dynamodb,etcd,mongodb,mysql,postgres,postgres18,zookeeper
# Processes that run tests side by side, each with servers of its own: more than processors, since most tests wait most of their time.
JOBS ?= 10
# Where 8 GB of memory can hold files, the servers of `make test` keep their data there: a busy disk may take longer for one fsync than a lease.
IN_MEMORY := $(shell [ "$$(df --output=size -k /dev/shm 2>/dev/null | tail -n 1)" -ge 8388608 ] 2>/dev/null && echo /dev/shm/dlock-servers-$$(id -u))
TYPED := $(wildcard dlock_contrib dlock_core dlock_dynamodb dlock_etcd dlock_mongodb dlock_mysql dlock_postgres dlock_redis dlock_sqlite dlock_zookeeper conformance_tests tests proof examples benchmarks docs/draw)

.PHONY: venv check types rules format unit conformance test apart containers newest oldest faults faults-long real recipes demo docs bench explore mutate proof clean

venv: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("dlock needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "make venv: installs the system package python3-venv"; \
		apt-get update && apt-get install --yes python3-venv; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[all,frameworks,conformance]' --group dev
	@$(BIN)/python -m pip install --quiet --group uwsgi 2>/dev/null || echo 'make venv: uWSGI cannot be built here; the tests of forks go without it'
	@touch $@

check: venv
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types rules

types:
	$(BIN)/mypy $(TYPED)
	$(BIN)/mypy conftest.py  # by itself: conformance_tests has a module of that name, too

# What all processes of `make test` load is compiled here once, and not by each of them.
rules:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@unset PYTHONDONTWRITEBYTECODE; $(BIN)/pytest --quiet --collect-only >/dev/null || { $(BIN)/pytest --quiet --collect-only | tail -n 40; exit 1; }
	$(BIN)/pytest $(RULES)

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

unit: venv
	$(BIN)/pytest tests -m 'not slow'

conformance: venv
	$(BIN)/pytest conformance_tests

# The tests start some thousand processes: what they load is compiled once, also where the environment asks for no compiled files.
test: check
	unset PYTHONDONTWRITEBYTECODE; export DLOCK_TEST_DATA=$(IN_MEMORY); \
		$(BIN)/pytest --cache-clear --numprocesses=$(JOBS) --dlock-require=$(STORES) $(RULES:%=--ignore=%) || $(BIN)/python -m tests.alone $$?

# Tests drawn by chance, each as if it were the only one: finds those that pass only in company. Not a part of `make test`.
TESTS ?= 200
apart: venv
	$(BIN)/pytest -p tests.apart --apart=$(TESTS)

# The way over containers, with images packed here: the suites of the stores alone, since `make test` has tried the client over the same
# servers. Root on Debian.
containers: venv
	DLOCK_TEST_SERVERS=container tools/servers/local-images.sh run sh -c '$(BIN)/pytest --cache-clear --numprocesses=5 \
		conformance_tests/test_redis.py conformance_tests/test_dynamodb.py conformance_tests/test_postgres.py conformance_tests/test_etcd.py \
		-k "Store and not Postgres18" --dlock-require=redis,dynamodb,postgres,etcd || $(BIN)/python -m tests.alone $$?'

# The suite and the tests of the adapters with the newest Python and the newest servers that Debian has. Root on Debian; not a part of
# `make test`, which has what a stable release has.
NEW_STORES = memory sqlite redis postgres mysql etcd zookeeper
newest:
	tools/newest.sh pytest --numprocesses=$(JOBS) $(NEW_STORES:%=conformance_tests/test_%.py) tests/core tests/cli tests/kit tests/contrib \
		$(patsubst %,tests/%,$(filter-out memory,$(NEW_STORES))) -k 'not mongodb and not dynamodb'
	tools/newest.sh mysql --numprocesses=$(JOBS) conformance_tests/test_mysql.py

# The suite and the tests of the adapters with the oldest drivers that pyproject.toml allows.
OLD := build/oldest
OLD_STORES = sqlite redis mongodb dynamodb postgres mysql etcd zookeeper
oldest: venv
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv venv --quiet --clear $(OLD)
	$(BIN)/uv pip install --quiet --python $(OLD)/bin/python --resolution lowest-direct --editable '.[all,frameworks,conformance]'
	$(BIN)/uv pip freeze --quiet --python $(OLD)/bin/python --exclude-editable >$(OLD)/constraints.txt
	$(BIN)/uv pip install --quiet --python $(OLD)/bin/python --group dev --constraint $(OLD)/constraints.txt
	$(OLD)/bin/python -m pytest --numprocesses=$(JOBS) -m 'not slow' \
		$(patsubst %,conformance_tests/test_%.py,$(OLD_STORES)) $(patsubst %,tests/%,$(OLD_STORES)) tests/cli tests/kit

faults: venv
	$(BIN)/python -m proof.faults --trials 300 --stores dynamodb,etcd,mongodb,mysql,postgres,redis,sqlite,zookeeper --jobs 3 --keep build/faults

faults-long: venv
	DLOCK_FAULTS=long $(BIN)/pytest tests/faults

# What rests on stand-ins, and the conformance suite, on a server of yours: make real URL=mongodb://HOST:PORT/?replicaSet=NAME
SCHEME = $(firstword $(subst :, ,$(URL)))
REAL = $(or $(patsubst mongodb%,mongodb,$(filter mongodb%,$(SCHEME))),$(patsubst redis%,redis,$(filter redis%,$(SCHEME))),\
	$(patsubst http%,dynamodb,$(filter http%,$(SCHEME))),$(patsubst %,etcd,$(filter etcd,$(SCHEME))),$(patsubst %,mysql,$(filter mysql mariadb,$(SCHEME))),\
	$(patsubst %,postgres,$(filter postgres postgresql,$(SCHEME))),$(patsubst %,zookeeper,$(filter zookeeper,$(SCHEME))))
real: venv
	@[ -n '$(REAL)' ] || { echo 'make real: URL=etcd://…, mongodb://…, mysql://…, postgresql://…, redis://…, zookeeper://… or https://… (DynamoDB) names the server' >&2; exit 64; }
	DLOCK_TEST_SERVERS=url DLOCK_TEST_$(shell echo $(REAL) | tr a-z A-Z)_URL='$(URL)' $(BIN)/pytest \
		$(wildcard tests/$(REAL)/test_assumptions.py) conformance_tests/test_$(REAL).py --dlock-require=$(REAL)

# The pages' pieces for Airflow, Dagster and APScheduler 4, each installed in an environment of its own. Not a part of `make test`.
recipes: venv
	$(BIN)/python -m tests.recipes

demo: venv
	$(BIN)/python -m examples.demo

docs: venv
	$(BIN)/python -m docs.draw
	$(BIN)/python -m sphinx --quiet --fail-on-warning --builder html docs build/docs
	@echo 'the site begins at build/docs/index.html'

bench: venv
	$(BIN)/python -m pip install --quiet --group bench
	$(BIN)/python -m benchmarks --output docs/benchmarks.md

explore: venv
	$(BIN)/python -m proof.explore
	$(BIN)/python -m proof.explore.members
	$(BIN)/python -m proof.explore.sessions
	$(BIN)/python -m proof.simulate.walks
	$(BIN)/python -m proof.simulate.users

# The named mutants of the shell and the adapters, and the sweep, with servers: most of a day, file by file, and the next run goes on where
# this one stopped. Not a part of `make test`.
mutate: venv
	$(BIN)/python -m proof --only slips --only sweep

proof: venv
	$(BIN)/python -m proof

clean:
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
