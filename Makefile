# The commands that people and CI share. They need only Python 3.11 or later and a package
# registry. One environment grows: `make demo` and `make test` install what they need themselves.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PACKAGES := -p lipt -p docs.make
PROTOS := $(wildcard proto/lipt/v1/*.proto)
CONSTRAINTS ?= constraints.txt

# What other versions of the requirements are tried with: a few minutes on two cores.
RUNNABLE := dashboard,demo,fast,huggingface,lightning,lm,otel,report,test,text
TRIED := tests/common tests/data tests/models tests/deploy tests/examples tests/trainer/client tests/trainer/integrations \
    $(addprefix tests/lipt/cli/,commands test_app.py test_certificates.py test_options.py test_output.py) \
    tests/worker tests/end_to_end/test_pipeline.py tests/test_packaging.py

.DEFAULT_GOAL := help
.PHONY: help env demo test test-all golden coverage tools test-faults test-mutations test-gpu test-oldest test-newest test-extras lint format docs stubs generate bench bench-gpu bench-pretrain bench-selection bench-selection-value bench-paper clean

help:  ## Show these targets.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 24

# What is installed, and the whole environment's size with it.
INSTALL = PYTHON='$(PYTHON)' CONSTRAINTS='$(CONSTRAINTS)' deploy/environment.sh $(VENV)

env: $(VENV)/.dev  ## Everything that any target needs, in .venv.

$(VENV)/.demo: pyproject.toml
	@$(INSTALL) demo '5.9 GB'
	touch $@

$(VENV)/.test: pyproject.toml
	@$(INSTALL) quick '6.2 GB'
	touch $@

$(VENV)/.dev: pyproject.toml
	@$(INSTALL) $(or $(EXTRAS),dev) '7.8 GB'
	touch $@ $(VENV)/.demo $(VENV)/.test

demo: $(VENV)/.demo  ## The whole pipeline on this machine: three workers, main training, the verdict.
	$(BIN)/lipt demo

# Without most tests that start processes or take seconds; hypothesis tries few examples.
QUICK := --hypothesis-profile quick -m '(smoke or not (processes or slow)) and not (faults or cuda or lint)'

test: $(VENV)/.test  ## The tests that notice most, in five minutes on two cores.
	$(BIN)/pytest -n 2 --dist worksteal $(QUICK) $(ARGUMENTS)

test-all: env  ## All tests but those of test-faults and test-gpu.
	$(BIN)/pytest -n 2 --dist worksteal $(ARGUMENTS)

golden: env  ## Record the golden digests; a change of one is explained in the commit message.
	$(BIN)/python -m tests.golden

# Compiled loops are not traced: their tests run once more without the compiler.
LOOPED := tests/core/selection/solvers/test_representatives.py $(addprefix tests/core/selection/strategies/test_,random_draws.py gradmatch.py)

coverage: env  ## Lines and branches that test-all runs.
	$(BIN)/coverage erase
	COVERAGE_PROCESS_START=pyproject.toml $(BIN)/coverage run -m pytest -n 2 --dist worksteal $(ARGUMENTS)
	NUMBA_DISABLE_JIT=1 $(BIN)/coverage run -m pytest -q $(LOOPED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --precision 2 --sort cover

# A browser, Prometheus, Slurm and the like: tests that need one of them skip where it is missing.
TOOLS := chromium nodejs prometheus slurmctld slurmd slurm-client munge systemd iproute2

tools:  ## What some tests need besides Python, from Debian's packages; as root.
	apt-get update --quiet=2
	DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends $(TOOLS)

test-faults: env  ## What `make test` leaves out because it takes minutes: faults, load, fuzzing.
	$(BIN)/pytest -m faults tests

test-mutations: env  ## Take out each protection of tests/mutations/rows; ARGUMENTS='--jobs 2 --only soup'.
	$(BIN)/python -m tests.mutations $(ARGUMENTS)

test-gpu: env  ## What a CUDA device comes to, against the CPU; fails where there is none.
	$(BIN)/python -c 'import torch; print(torch.cuda.get_device_name())'
	$(BIN)/pytest -m cuda tests

test-oldest:  ## Some of the tests with the oldest versions of all requirements, in .venv-oldest.
	$(MAKE) env VENV=.venv-oldest EXTRAS=$(RUNNABLE) CONSTRAINTS=constraints-oldest.txt
	.venv-oldest/bin/pytest -n 2 --dist loadfile $(TRIED)

test-newest:  ## The same with the newest that the registry has, in .venv-newest.
	$(MAKE) env VENV=.venv-newest EXTRAS=$(RUNNABLE) CONSTRAINTS=/dev/null
	.venv-newest/bin/pytest -n 2 --dist loadfile $(TRIED)

test-extras: env  ## Each extra without the others. NAMES='fast report' tries those alone.
	$(BIN)/python -m tests.each_extra $(NAMES)

lint: env  ## Format, style, types, plain words, dependency direction, stub freshness, deploy files.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(PACKAGES)
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python -m docs.make.plain_words
	$(BIN)/pytest -q -m lint

format: env  ## Format the sources and mend what can be mended.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: env  ## Build the documentation into site/, strictly.
	$(BIN)/python -m docs.make

stubs: env  ## Generate the contract's stubs.
	$(BIN)/python -m grpc_tools.protoc --proto_path=proto --python_out=proto --pyi_out=proto \
	    --grpc_python_out=proto --mypy_grpc_out=quiet:proto \
	    --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc $(PROTOS)

generate: env  ## Write the example files of deploy/ from the settings' descriptions.
	$(BIN)/python -m deploy.generate

bench: env  ## Measure, as ratios in one run.
	$(BIN)/python -m benchmarks

bench-gpu: env  ## Main training on a GPU: images/s and share of its peak. ARGUMENTS='--processes 1 2 4'.
	$(BIN)/python -m benchmarks.gpu_training $(ARGUMENTS)

bench-pretrain: env  ## What pre-training takes, and the warm-ups it replaces: half an hour, resumes.
	$(BIN)/python -m benchmarks.pretraining_price $(ARGUMENTS)

# DEEPCORE=PATH and CORDS=PATH are checkouts; ARGUMENTS as in `python -m benchmarks.selection -h`.
bench-selection: env  ## Selection against the field's libraries. Takes hours; ARGUMENTS='--sizes 5000'.
	$(BIN)/python -m benchmarks.selection --deepcore '$(DEEPCORE)' --cords '$(CORDS)' $(ARGUMENTS)

bench-selection-value: env  ## Train on subsets of clean and dirty data. Takes many hours, resumes.
	$(BIN)/python -m benchmarks.value $(ARGUMENTS)

bench-paper: env  ## The paper's tables and figures. Takes hours, resumes; TABLES='B.1 2'.
	$(BIN)/python benchmarks/paper.py $(or $(TABLES),all) $(ARGUMENTS)

clean:  ## Remove the environment and everything generated.
	rm -rf $(VENV) .venv-oldest .venv-newest build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .cache docs/generated site lipt-demo
