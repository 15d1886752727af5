# `make up` runs a whole fleet on this machine; the other targets are for working on Flotilla.
#   make up ARGS='--workers 2 --model Qwen/Qwen3-0.6B'    make test ARGS=tests/unit

.DEFAULT_GOAL := help
.PHONY: help up install check test test-cluster test-vllm test-page test-clients test-compose lint docs load faults tour clean
# Only the installer reads this one; Flotilla refuses FLOTILLA_ variables that are no settings.
unexport FLOTILLA_BACKEND
# Without stored bytecode each process compiles all modules anew, a gateway for 0.3 s.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

up: install ## Redis, gateway and workers in this terminal; Ctrl-C stops them (ARGS: see `flotilla up -h`)
	@exec .venv/bin/flotilla up $(ARGS)

install: ## .venv with everything in it (PYTHON, FLOTILLA_BACKEND: see compose/install.sh)
	@FLOTILLA_BACKEND='$(FLOTILLA_BACKEND)' PYTHON='$(PYTHON)' sh compose/install.sh

# Five processes for two cores, as tests wait for more than half of their time; at most six. Each
# starts a Redis of its own.
PARALLEL = -n $$(( ($$(nproc) * 5 + 1) / 2 )) --maxprocesses 6 --dist loadfile --no-loadscope-reorder

check: lint ## before a commit: lint and unit tests, in a minute and a half
	.venv/bin/pytest -q $(PARALLEL) -m 'not vllm' tests/unit

test: install ## all tests but those below; of real vLLM the main path (ARGS: pytest's)
	.venv/bin/pytest $(PARALLEL) -m 'not vllm or main_path' --ignore tests/page \
		--ignore tests/clients --ignore tests/vllm $(ARGS)

test-vllm: install ## all that needs real vLLM; small models are made on the spot (ARGS: pytest's)
	.venv/bin/pytest -m 'vllm and not main_path' $(or $(ARGS),tests/vllm tests/e2e tests/unit)

test-cluster: install ## the tests of the queue again, on a node of a Redis Cluster (ARGS: pytest's)
	.venv/bin/pytest $(PARALLEL) --redis=cluster tests/store $(ARGS)

# The browser itself is the system's: Debian's chromium-headless-shell or chromium.
PAGE_TOOLS = .venv/bin/python -c 'import axe_playwright_python, playwright' 2>/dev/null || \
	.venv/bin/python -m pip install -qq --disable-pip-version-check --no-warn-conflicts \
		-c compose/constraints.txt -e '.[page]'

test-page: install ## the page in a browser, and the tour; skipped where there is no Chromium (ARGS: pytest's)
	@$(PAGE_TOOLS)
	.venv/bin/pytest -n 2 --dist loadfile tests/page $(ARGS)

tour: install ## walks through docs/pages/tour.md on a fleet of its own, and takes its pictures
	@$(PAGE_TOOLS)
	@.venv/bin/python -m tests.page.tour $(ARGS)

test-clients: install ## unmodified client libraries on real vLLM; installs them in .cache (ARGS: see tests/clients)
	@.venv/bin/python -m tests.clients $(ARGS)

test-compose: install ## the compose files for real; starts a Docker engine if none runs (REAL=1: with vLLM)
	@REAL='$(REAL)' tests/deploy/compose/run.sh $(ARGS)

lint: install ## style, types, docstrings, code without use
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/vulture

docs: install ## the documentation as a site, .cache/site/index.html; works without a network
	@.venv/bin/python -c 'import material' 2>/dev/null || \
		.venv/bin/python -m pip install -qq --disable-pip-version-check --no-warn-conflicts \
			-c compose/constraints.txt -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict -f docs/mkdocs.yml
	@echo 'docs: open .cache/site/index.html'

load: install ## what Flotilla costs, beside other servers (ARGS: see `.venv/bin/python -m load_tests -h`)
	@.venv/bin/python -m load_tests $(ARGS)

faults: install ## kill processes of a fleet 1,000 times and check every answer (ARGS: see load_tests/README.md)
	@.venv/bin/python -m load_tests faults $(ARGS)

clean: ## removes .venv, caches and the data of `make up`
	rm -rf .venv .flotilla .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
