# `make setup` once, then `make check test`. Everything runs from the locked environment in .venv.
UV ?= uv
BIN := .venv/bin
PYTHON ?= 3.11
# A file stays with one worker, since its tests may share what they stand on.
WORKERS ?= 2
BESIDE = $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile

.PHONY: setup lock check test test-fast run postgres bench bench-deliver bench-isolation bench-webhooks bench-submission openapi clean

setup: ## Install what the lock file names into .venv
	@command -v $(UV) >/dev/null || { echo "uv is missing: install it with 'pipx install uv'"; exit 1; }
	@test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) .venv
	$(UV) pip sync --quiet --compile-bytecode --require-hashes requirements.lock
	$(UV) pip install --quiet --no-deps --editable .

lock: ## Write the lock file anew from pyproject.toml
	$(UV) pip compile pyproject.toml --group dev --universal --generate-hashes --no-annotate --no-header \
		--no-emit-index-url --no-emit-find-links --quiet --output-file requirements.lock

check: ## Style, types, the rooms' walls, dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/deptry src

test: ## Everything, on private PostgreSQLs: two files at a time, then those that need the machine for themselves
	@failed=; $(BESIDE) -m "not alone" --durations 30 || failed=1; $(BIN)/pytest -m alone --durations 20 || failed=1; test -z "$$failed"

test-fast: ## Without the slow ones
	$(BESIDE) -m "not slow and not alone"

postgres: ## A private PostgreSQL for development, its data in .run/postgres, on port 54329
	$(BIN)/python tools/private_postgres.py run --directory .run/postgres --port 54329

run: ## The service on a private PostgreSQL and a private NATS, with a configuration and a demo account in .run/
	$(BIN)/python tools/private_postgres.py run --directory .run/postgres --port 54329 -- $(BIN)/python -m tools.run_local

bench: ## Measure the accept path; writes bench/RESULTS.md and a plot
	$(BIN)/python bench/accept.py

bench-deliver: ## Measure the delivery path beside Postfix and Haraka (as root); writes bench/RESULTS.md and a plot
	$(BIN)/python bench/deliver.py

bench-isolation: ## Measure what a dead destination or a backlog costs the others; writes into bench/RESULTS.md
	$(BIN)/python bench/isolation.py

bench-webhooks: ## Measure webhooks beside a bare loop, and beside one that hangs; writes into bench/RESULTS.md and a plot
	$(BIN)/python bench/webhooks.py

bench-submission: ## Measure submission over SMTP beside Postfix and Haraka (as root); writes into bench/RESULTS.md and a plot
	$(BIN)/python bench/submission.py

openapi: ## Write docs/reference/openapi.json anew
	$(BIN)/python tools/write_openapi.py

clean:
	rm -rf .venv .run .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
