# Headway's everyday commands. `make up` and `make test` are all a newcomer needs.
PYTHON ?= python3
BIN := .venv/bin
BOOTSTRAP := $(PYTHON) platform/deploy/bootstrap.py

.PHONY: up down logs test check fmt bench-gateway soak

up:        ## set up and serve; ATTACH=1 stays until Ctrl-C
	@$(BOOTSTRAP) platform engine
	@$(BIN)/python manage.py up $(if $(ATTACH),--attach)

down:      ## stop what `make up` started, engines included
	@$(BIN)/python manage.py down

logs:      ## follow every log of the installation
	@tail -n 20 -F $${HEADWAY_HOME:-.headway}/logs/*.log

test:      ## every test: services on SQLite and PostgreSQL, browser, edges and real engines on PostgreSQL, a smoke on SQLite
	@$(BOOTSTRAP) platform engine dev
	@$(BIN)/python -m tests.rings

check:     ## format, lint, types, migrations
	@$(BOOTSTRAP) platform dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	HEADWAY_HOME=.cache/check $(BIN)/python manage.py makemigrations --check --dry-run

fmt:       ## format and mend what can be mended
	@$(BOOTSTRAP) platform dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-gateway: ## CPU per request and per token event, TTFT and memory, beside vllm-router, smg and LiteLLM (about 10 minutes)
	@$(BOOTSTRAP) platform dev
	@$(BIN)/python -m bench.gateway

soak:      ## storms and long runs; results go to bench/README.md
	@$(BOOTSTRAP) platform engine dev
	@$(BIN)/python -m tests.rings soak
