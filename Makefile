# `make setup` once, then `make check test`. Everything runs from the locked environment in .venv.
UV ?= uv
BIN := .venv/bin
# Debian's own Python, if it is one of 3.11 to 3.13: most servers run it, it is faster than those of other builders, and
# `re` of Debian 12's 3.11.2 has faults that later ones don't have.
PYTHON ?= $(shell /usr/bin/python3 -c 'import sys; print(sys.executable if (3, 11) <= sys.version_info < (3, 14) else "3.11")' 2>/dev/null || echo 3.11)
# Two workers more than there are cores: tests wait for two thirds of their time.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
# A file stays with one worker, since its tests may share fixtures.
PARALLEL = $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
# How often each generated input is tried; below 1 the inputs and seeds are the same in every run.
TIMES ?= 0.25
fuzz: TIMES = 20
export FUZZ_TIMES = $(TIMES)
# Without cached bytecode, rewriting the tests takes 10 s of each start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup lock check test test-all test-fast test-nightly test-dev test-workers test-attacks attacks-table run postgres fuzz bench bench-deliver bench-isolation bench-webhooks bench-submission bench-search bench-backlog bench-operator bench-idle bench-warm-up bench-warm-up-flows bench-providers crash chaos simulate docs docs-serve diagrams screenshots openapi reference clean sdks sdks-if-changed

setup: ## Install what the lock file names into .venv
	@command -v $(UV) >/dev/null || { echo "uv is missing: install it with 'pipx install uv'"; exit 1; }
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) .venv
	$(UV) pip sync --quiet --python $(BIN)/python --compile-bytecode --require-hashes requirements.lock
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .

lock: ## Write the lock file from pyproject.toml
	$(UV) pip compile pyproject.toml --group dev --universal --generate-hashes --no-annotate --no-header \
		--no-emit-index-url --no-emit-find-links --quiet --output-file requirements.lock

check: ## Style, types, package boundaries, dependencies, circles of imports; prints how large the code is
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src
	$(BIN)/python tools/count_code.py

# Accept, deliver, webhooks, submission and audit, from the SQL to the running service.
CORE = tests/flows tests/store tests/acceptance

test: ## The tests that a change needs, on private PostgreSQLs; `test-all` runs the rest; PG=18: the core, on that version
	$(if $(PG),POSTGRES_VERSION=$(PG) )$(PARALLEL) \
		-m "not long and not nightly and not fuzz" --durations 20 $(if $(PG),$(CORE))

test-all: ## The tests of CI: also load and kills, whole processes, generated input, the dashboard, and pages that changed
	$(PARALLEL) -m "not nightly" --durations 20

test-fast: ## Pure rules and storage, in under a minute
	$(PARALLEL) -m "not long and not nightly and not fuzz" tests/rules tests/mail tests/store

.PHONY: test-docs
test-docs: ## Every command of the README, the tutorial and the how-to pages, some on a Debian that is booted (as root; Debian's mmdebstrap and systemd-container); CI runs those of pages that changed
	EVERY_PAGE=1 $(BIN)/pytest tests/test_readme.py tests/deploy/test_guides.py --durations 10
	sha256sum docs/howto/*.md docs/tutorial/*.md >.ci/pages-followed

.PHONY: test-times
test-times: ## How long each file of tests takes, into tests/times.csv, which `make test` starts them by
	MEASURE_TEST_TIMES=1 $(PARALLEL) -q -m "not nightly"

.PHONY: nightly
nightly: ## What CI leaves out, in some hours: every page, measured attacks, kills at every crash point, chaos, generated input
	@$(MAKE) --keep-going TIMES=1 test-all test-docs test-nightly test-debian-13 test-attacks test-upgrade test-contract sdks crash chaos; \
	others=$$?; $(MAKE) fuzz && exit $$others

.PHONY: test-debian-13
test-debian-13: ## What CI runs, on Debian 13 with Python 3.13 and PostgreSQL 17, as in the image (as root; Debian's mmdebstrap)
	tools/test_on_debian_13.sh

test-nightly: ## The tests that take long, or fail only when their own subject is changed: small benchmarks, planted faults
	$(BIN)/pytest -m nightly --ignore tests/deploy --ignore tests/dashboard

.PHONY: races
races: ## 10,000 races between a cancellation and a worker, and the audit (ten minutes)
	$(BIN)/pytest tests/flows/account/test_scheduled_mail.py -m nightly --capture=no

.PHONY: test-later
test-later: ## Scheduled mail in its real size: 1,000 messages moved over 90 days, 10,000 due in a second (a quiet machine)
	$(BIN)/pytest tests/flows/deliver/test_send_at.py tests/flows/operate/test_stragglers.py -m nightly --capture=no

.PHONY: test-resends
test-resends: ## 5,000 messages that failed at a dead destination are sent again, by a process that is killed three times (ten minutes)
	$(BIN)/pytest tests/acceptance/test_resent_mail.py -m nightly --capture=no

.PHONY: test-erasures
test-erasures: ## An address with 1,000 messages over 30 days is erased while mail flows: database, logs and stream contain nothing of it
	$(BIN)/pytest tests/acceptance/test_erasures.py -m nightly -q

.PHONY: test-contract
test-contract: ## 500 old requests to the service before send_at, batches and scopes, and to this one: the same answers and webhooks
	$(BIN)/pytest tests/upgrade/test_recorded_requests.py -m nightly --capture=no -rs

.PHONY: mutations
mutations: ## Which test finds each of the 60 faults of tests/mutations, planted one by one in a copy (an hour); MUTATIONS="--area lanes"
	$(BIN)/python tools/mutations.py $(MUTATIONS)

test-dev: ## The wheel in an empty environment: `posthouse dev` to a message that can be read, as root and as an ordinary user
	$(BIN)/pytest tests/dev -m "nightly or not nightly" --capture=no

.PHONY: dashboard-test
dashboard-test: ## The dashboard in Chromium, whole: journeys, roles, axe, hostile texts, widths, load, live (as long as it takes)
	$(BIN)/pytest tests/dashboard -m "nightly or not nightly" --durations 20 $(DASHBOARD_TEST)

test-workers: ## A provider's limit at the receiver while workers join, leave and are killed (a quiet machine, six minutes; WORKERS_PER_SECOND=20: a busy one)
	$(BIN)/pytest tests/faults/test_workers_together.py --capture=no

.PHONY: gameday
gameday: ## Ten things break under load: alert, runbook, repair, audit (15 minutes, Debian's prometheus); SCENES="2 5" REPORT=docs/internals/gameday.md
	$(BIN)/python -m tests.gameday.gameday $(SCENES) $(if $(REPORT),--report $(REPORT))

.PHONY: test-failover
test-failover: ## Primaries killed, frozen and cut off under load, ten times each, then the audit (half an hour); FAILOVER="frozen --rounds 2"
	$(BIN)/python -m tests.failover.failover_rounds $(FAILOVER)

.PHONY: test-patroni
PATRONI ?= patroni
test-patroni: ## deploy/patroni with a real etcd (Debian's etcd-server), its primary killed and frozen under load, then the audit
	$(BIN)/python -m tests.failover.patroni_failover --patroni $(PATRONI)

.PHONY: test-restore
test-restore: ## The service under load is lost and its database restored to a point in time, with and without the hold (Debian's pgbackrest; five minutes); RESTORE="--only held"
	$(BIN)/python -m tests.restore.point_in_time $(RESTORE)

.PHONY: test-upgrade
test-upgrade: ## The newest tag's processes (without tags: those of tests/upgrade/start-commit) on this version's tables, and both at the same time under load; all secrets replaced under load
	$(BIN)/pytest tests/upgrade -m "nightly or not nightly" --capture=no -rs

.PHONY: test-deploy image test-image sbom
test-deploy: ## Deployment files, packages and proxies, whole: also what CI leaves out (Debian's nginx, caddy, systemd, strace)
	$(BIN)/pytest tests/deploy --durations 10

.PHONY: test-monitoring
test-monitoring: ## Rules, alerts and dashboards, also with a real Prometheus and a service under load (Debian's prometheus)
	$(BIN)/pytest tests/deploy/test_monitoring.py -m "nightly or not nightly"

SBOM ?= dist/posthouse.cdx.json
.PHONY: package
package: dashboard ## The source distribution and the wheel, with the dashboard, into dist/
	$(UV) build --quiet --out-dir dist

sbom: ## The bill of materials (CycloneDX) of what the service installs
	rm -rf .run/sbom
	$(UV) venv --quiet .run/sbom
	$(UV) pip install --quiet --python .run/sbom/bin/python --constraints requirements.lock .
	mkdir -p $(dir $(SBOM))
	$(UV) tool run --quiet --from cyclonedx-bom==7.5.0 cyclonedx-py environment --pyproject pyproject.toml \
		--output-file $(SBOM) .run/sbom/bin/python

IMAGE ?= localhost/posthouse:$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
image: dashboard ## The container image, without a container engine or a registry (as root; Debian's buildah and mmdebstrap)
	deploy/build-image.sh --own-base $(IMAGE)

test-image: image ## Build the image, run it on a read-only root without privileges, and send a message through it
	$(BIN)/python -m tools.try_image $(IMAGE)

test-attacks: ## Every attack next to a victim, also those that measure the victim's time and all steps of clocks (a quiet machine, half an hour)
	$(BIN)/pytest tests/attacks --durations 20

attacks-table: ## Measure a victim's times next to every noisy neighbour; writes into docs/internals/noisy-neighbours.md (a quiet machine, 15 minutes)
	REPORT=docs/internals/noisy-neighbours.md $(BIN)/pytest tests/attacks/test_noisy_neighbours.py

fuzz: ## Bad input to every surface, TIMES=20 (CI: 0.25) (an hour); reports what was tried, and what failed
	$(BIN)/pytest -m fuzz --verbose --durations 10

postgres: ## A private PostgreSQL for development, its data in .run/postgres, on port 54329
	$(BIN)/python tools/private_postgres.py run --directory .run/postgres --port 54329

run: ## The service with its own PostgreSQL and a demo account, in .posthouse/; DEV="--reset" and other options
	$(BIN)/posthouse dev $(DEV)

bench: ## Measure the accept path; writes bench/RESULTS.md and a plot
	$(BIN)/python bench/accept.py

.PHONY: bench-bodies
bench-bodies: ## Measure what bodies cost PostgreSQL, as they are and compressed; writes into bench/RESULTS.md
	$(BIN)/python bench/bodies.py

bench-deliver: ## Compare the delivery path with Postfix, with and without a signer, and Haraka (as root); writes bench/RESULTS.md and a plot
	$(BIN)/python bench/deliver.py

.PHONY: plot-costs
plot-costs: ## Draw what a message costs, part by part, from the figures in bench/RESULTS.md
	$(BIN)/python bench/cost_plot.py

bench-isolation: ## Measure what a dead destination or a backlog costs the others; writes into bench/RESULTS.md
	$(BIN)/python bench/isolation.py

bench-webhooks: ## Compare webhooks with a bare loop, and measure them next to one that hangs; writes into bench/RESULTS.md and a plot
	$(BIN)/python bench/webhooks.py

bench-submission: ## Compare submission over SMTP with Postfix and Haraka (as root); writes into bench/RESULTS.md and a plot
	$(BIN)/python bench/submission.py

SDKS_CHECKED := .ci/sdks-checked
SDKS_HASH = git ls-files --stage sdks docs/reference/openapi.json | sha256sum

sdks-if-changed: ## `sdks`, if they or the interface changed since it passed last
	@if $(SDKS_HASH) | cmp --quiet - $(SDKS_CHECKED); \
	then echo "The client libraries and the interface are those that passed last."; else $(MAKE) sdks; fi

sdks: ## The client libraries: their types, every conformance case in each language, each README's first example
	cd sdks/python && ../../$(BIN)/mypy
	MYPYPATH=sdks/conformance $(BIN)/mypy sdks/check.py sdks/conformance
	$(BIN)/python sdks/check.py
	$(SDKS_HASH) >$(SDKS_CHECKED)

bench-search: ## Measure the list of messages, and reading by id, on ten million of them; writes into bench/RESULTS.md
	$(BIN)/python bench/search.py

bench-idle: ## Measure ten thousand idle SMTP sessions, and new clients during them; writes into bench/RESULTS.md
	$(BIN)/python bench/idle_sessions.py

.PHONY: bench-accounts
bench-accounts: ## Measure a process that meets 100,000 accounts, and one that meets 100,000 destinations; writes into bench/RESULTS.md
	$(BIN)/python bench/many_accounts.py

.PHONY: bench-overload
bench-overload: ## Measure what requests get at 0.7 and at twice of what a process can accept; writes into bench/RESULTS.md
	$(BIN)/python bench/overload.py

.PHONY: bench-low-load
bench-low-load: ## Measure what a message costs PostgreSQL and the service at low rates, and the idle service; writes into bench/RESULTS.md and a plot
	$(BIN)/python bench/low_load.py

bench-providers: ## Measure how much mail providers with hidden limits accept; writes into bench/RESULTS.md
	$(BIN)/python bench/providers.py

bench-backlog: ## Measure dispatch and claims with up to a million scheduled recipients; writes into bench/RESULTS.md
	$(BIN)/python bench/backlog.py

bench-operator: ## Measure the operator's routes with 10,000 accounts, 10,000 lanes and a million waiting recipients, and 20 open pages; writes into bench/RESULTS.md
	$(BIN)/python bench/operators.py

bench-warm-up: ## Warm up an address at 400 modelled providers, compared with fixed schedules; writes into bench/RESULTS.md and a plot
	$(BIN)/python bench/warm_up.py

bench-warm-up-flows: ## Warm up an address for 30 days through the flows, according to the receiver's log; writes into bench/RESULTS.md and a plot
	$(BIN)/python bench/warm_up_flows.py

.PHONY: bench-migrations
bench-migrations: ## Measure how long migrations since the release lock what accepting and delivery write; writes into bench/RESULTS.md
	$(BIN)/python bench/migrations.py

.PHONY: bench-libraries
bench-libraries: ## Compare our SMTP client, DKIM signer and reader of submitted messages with libraries; writes no file
	$(BIN)/python -m bench.libraries

.PHONY: count
count: ## Count the calls and system calls of an accepted and a delivered message; writes into bench/RESULTS.md (a minute)
	$(BIN)/python bench/count.py

.PHONY: bench-metrics
bench-metrics: ## Measure what the metrics cost, with and without them in turn; writes into bench/RESULTS.md
	$(BIN)/python bench/metrics.py

.PHONY: bench-traces
bench-traces: ## Measure what tracing costs, switched off and on; writes into bench/RESULTS.md
	$(BIN)/python bench/traces.py

.PHONY: bench-commits
bench-commits: ## Measure whether a change costs processor time, in six loads, in 20 minutes; writes no file; BEFORE=<commit> LOADS=accept,list
	$(BIN)/python bench/commits.py --before $(BEFORE) $(if $(LOADS),--loads $(LOADS))

crash: ## Kill every process at every crash point under load, and audit (some 20 minutes); POINTS="claim. record." for some REPORT=crash.md
	$(BIN)/python -m tests.crash.crash_points $(POINTS) $(if $(REPORT),--report $(REPORT))

SEED ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
MINUTES ?= 5
chaos: ## The whole service under load while everything that can fail fails (as root); SEED=1 MINUTES=30 EVERY=3 RATE=65 REPORT=docs/internals/reliability.md
	$(BIN)/python -m tests.chaos.fault_plan --seed $(SEED) --minutes $(MINUTES) --every $(or $(EVERY),3) \
		--rate $(or $(RATE),65) $(if $(REPORT),--report $(REPORT))

simulate: ## Days of the flows in one process on a virtual clock, every promise after each step; SEED=1 STEPS=5000
	$(BIN)/python -m tests.simulation.seeded_run --seed $(SEED) --steps $(or $(STEPS),1000)

docs: ## The documentation site, into .run/site; DOCS_URL: where it will be read; every warning is an error: a broken link, a missing anchor
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: ## The documentation site on port 8000, rebuilt with every change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

MERMAID ?= 11.17.2
diagrams: ## Draw docs/diagrams with Mermaid from npm and a Chromium of this machine
	npm install --silent --no-audit --no-fund --prefix .run/mermaid mermaid@$(MERMAID)
	$(BIN)/python -m tools.draw_diagrams .run/mermaid/node_modules/mermaid/dist/mermaid.min.js

screenshots: dashboard ## Take the screenshots of the documentation with a Chromium of this machine
	$(BIN)/python -m tools.take_screenshots
	$(BIN)/python -m tools.take_dashboard_screenshots

.PHONY: dashboard dashboard-setup dashboard-types dashboard-check dashboard-check-built dashboard-dev
NPM = $(BIN)/python -m tools.npm
NODE_MODULES = dashboard/node_modules/.package-lock.json

# Not `ci`, which refuses a lock file without the bundler's packages for other systems; the versions are the lock's.
$(NODE_MODULES): dashboard/package-lock.json
	$(NPM) install --no-save --loglevel error
	@touch $@

dashboard-setup: $(NODE_MODULES) ## Install what dashboard/package-lock.json names
# Two tests verify webhooks with an npm package.
test test-all: $(NODE_MODULES)

dashboard: $(NODE_MODULES) ## Build the dashboard into src/posthouse/dashboard/
	$(NPM) run --silent build

API_TYPES = dashboard/src/api/schema.d.ts
$(API_TYPES): docs/reference/openapi.json $(NODE_MODULES)
	$(NPM) run --silent types

dashboard-types: $(API_TYPES) ## Generate the dashboard's types from docs/reference/openapi.json, and its roles from the declared operations
	$(BIN)/python -m tools.write_dashboard_roles

dashboard-check: dashboard ## The dashboard's types, style, boundaries, tests, generated files and budgets
	@$(MAKE) --no-print-directory dashboard-check-built

dashboard-check-built: $(API_TYPES) ## `dashboard-check` of what is built already
	$(NPM) run --silent tsc
	$(NPM) run --silent lint
	$(NPM) run --silent walls
	$(NPM) run --silent test
	$(BIN)/python -m tools.write_dashboard_roles --check
	$(NPM) run --silent budget

dashboard-dev: $(API_TYPES) ## The dashboard with every change applied immediately, on port 5173, next to a service of `make run`
	$(NPM) run dev

reference: ## Write settings.md, cli.md, metrics.md and doctor.md of docs/reference
	$(BIN)/python -m tools.write_reference

.PHONY: grafana-dashboards
grafana-dashboards: ## Write deploy/monitoring/dashboards
	$(BIN)/python -m tools.write_grafana_dashboards

.PHONY: figures
figures: ## Write bench/figures.json, the figures that pages quote, from the reports of benchmarks and long runs
	$(BIN)/python -m bench.figures

openapi: ## Write docs/reference/openapi.json
	$(BIN)/python tools/write_openapi.py

clean:
	rm -rf .venv .run .posthouse .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
