# Everything runs in .venv; `make help` lists the targets.

PYTHON ?= python3
# What pip installs as torch. On a machine without a GPU, PyTorch's own CPU index saves a download of several
# GB: make setup TORCH='torch==2.13.0 --index-url <the CPU index named on pytorch.org>'
TORCH ?= torch==2.13.0
DEMO_ARGS ?=
TEST_ARGS ?=
BENCH_ARGS ?=
DATA ?= ../shared/data

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STACK := integrations/sglang/local
STAMP := .venv/setup.stamp
LINKS := .venv/links/kvferry
NO_STACK = echo "pip cannot have SGLang's CPU stack here: it needs Linux on x86-64 and Python 3.11" >&2; exit 1

.DEFAULT_GOAL := help
.PHONY: help setup test test-triton check demo bench bench-plugin bench-simulator bench-policies bench-transports clean links mooncake-library redis-server

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  \1	/p' $(MAKEFILE_LIST)

setup: mooncake-library $(STAMP) ## make .venv with kvferry, SGLang's CPU stack and the tools

test: setup redis-server check ## lint, type-check and run every test
	$(BIN)/pytest $(TEST_ARGS)

# Not among .venv's own packages: SGLang's CPU stack takes triton there for a GPU's. 300 MB to fetch, 1 GB on disk.
test-triton: setup ## run Triton's kernels under its interpreter, on the CPU
	test -d .venv/triton || $(PIP) install -q --no-deps --target .venv/triton triton
	PYTHONPATH=.venv/triton $(BIN)/pytest tests/integrations/transports/kernels -k triton

demo: setup ## real workers, a store and the router: watch requests being decided
	$(BIN)/kvferry local demo $(DEMO_ARGS)

bench: setup ## print how fast a decision is
	$(BIN)/python benchmarks/decide.py

bench-plugin: setup ## print what telemetry costs a worker
	$(BIN)/python benchmarks/plugin.py $(BENCH_ARGS)

check: links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=.venv/links $(BIN)/lint-imports

bench-simulator: setup ## print how fast the simulator is, and how near to measured runs
	$(BIN)/python benchmarks/simulator_speed.py $(DATA)/traces/mooncake_conversation.jsonl.gz
	$(BIN)/python benchmarks/simulator_fidelity.py $(DATA)/perf

bench-transports: setup ## compare moves with the bare libraries' own: 2 minutes on two cores
	$(BIN)/python benchmarks/transports.py $(BENCH_ARGS)

bench-policies: setup ## compare kvferry with every public rule: an hour on two cores
	$(BIN)/python benchmarks/policies.py --traces $(DATA)/traces $(BENCH_ARGS)

clean: ## remove .venv and everything built
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .demo

# mypy and import-linter follow folders, not the import hook of an editable install.
links:
	@mkdir -p $(LINKS)
	@for part in configs integrations models policy; do ln -sfn ../../../$$part $(LINKS)/$$part; done

$(STAMP): pyproject.toml $(STACK)/requirements-cpu.txt $(STACK)/requirements-cpu-nodeps.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "kvferry needs Python 3.11 or newer; name one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "Python's venv is missing (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@echo "Setting up .venv: 2.5 GB, a few minutes"
	@$(PYTHON) -m venv .venv
	@$(PIP) install -q $(TORCH) || { $(NO_STACK); }
	@$(PIP) install -q -r $(STACK)/requirements-cpu.txt || { $(NO_STACK); }
	@$(PIP) install -q -c $(STACK)/requirements-cpu.txt -e '.[dev]'
	@$(PIP) install -q --no-deps -r $(STACK)/requirements-cpu-nodeps.txt || { $(NO_STACK); }
	@touch $@

# apt as root; else one line that says what is missing and what it costs.
mooncake-library:
	@/sbin/ldconfig -p 2>/dev/null | grep -q libibverbs.so.1 || $(call apt,libibverbs1,Mooncake cannot start)

redis-server:
	@command -v redis-server >/dev/null || $(call apt,redis-server,tests against a real Redis are skipped)

apt = if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(1); then :; \
	else echo "without the system package $(1), $(2) (Debian, Ubuntu: apt-get install $(1))" >&2; fi
