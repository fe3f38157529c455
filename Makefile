# `make demo` and `make test` set up .venv the first time.
comma := ,
PYTHON ?= python3
VENV ?= .venv
# The real dataset readers, each in an environment of its own: their pinned versions conflict.
READERS_DIR := test/export/readers
READERS := $(notdir $(patsubst %/,%,$(dir $(wildcard $(READERS_DIR)/*/requirements.txt))))
TORCH ?= torch==2.13.0
# Without a GPU, PyTorch's own index has a build ten times smaller than PyPI's.
CPU_WHEELS := https://download.pytorch.org/whl/cpu
cpu_index = $(shell command -v nvidia-smi >/dev/null || { $(PYTHON) -c \
  'import urllib.request as u; u.urlopen("$(CPU_WHEELS)/torch/", timeout=5)' 2>/dev/null && echo --extra-index-url $(CPU_WHEELS); })
# A sourced ROS installation has its own rclpy.
ROS_EXTRA := $(if $(ROS_DISTRO),,ros$(comma))
EXTRAS ?= $(ROS_EXTRA)export,datasets,remote,fleet,cli,sim,calibrate,policies,pedals,dev
PYTEST_ARGS ?=
# Processes that run the tests: the tests of one file in one of them. Tests of nodes wait, so two cores take three.
TEST_PROCESSES ?= 3
DEMO_ARGS ?=

BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Real DDS without the network: the demo and the tests stay on this machine.
export ROS_AUTOMATIC_DISCOVERY_RANGE ?= LOCALHOST
# Without bytecode each process of the tests compiles all of them, which takes six seconds.
unexport PYTHONDONTWRITEBYTECODE
# The output of pip goes to a log, which is shown when pip fails.
LOG := $(VENV).log
define quietly
	@echo "==> $(1)"; $(2) >>$(LOG) 2>&1 || { tail -n 30 $(LOG); \
	  echo "make: '$(1)' failed; the log is $(LOG). Check the network and the disk, then run make again."; exit 1; }
endef

# A killed node leaves 64 MB of shared memory behind; this removes the segments of dead processes only.
define clean_shm
	@if [ -x $(BIN)/fastdds ]; then PATH="$(abspath $(BIN)):$$PATH" fastdds shm clean >/dev/null 2>&1 || true; fi
endef

.PHONY: help demo loop test test-slow test-all soak check readers-env docs dist sbom clean

help:
	@echo "make demo         replay a robot recording through the ROS 2 node, export it, write the quality report"
	@echo "make loop         simulate a robot, record an expert, export it, run a policy closed loop, with and without latency"
	@echo "make test         lint, types and the tests, also those that need a real ROS 2"
	@echo "make test-all     the same, then the slow tests: Ray, builds, dataset readers, killed exports, kernels, GPU"
	@echo "make soak         the tests again and again on a busy machine, and a report of those that ever failed"
	@echo "make check        lint and types alone"
	@echo "make readers-env  the real dataset readers ($(READERS)), which the 'reader' tests use"
	@echo "make docs         write the generated pages of docs/reference, and build the site in docs/_build"
	@echo "make dist         build the sdist and the wheel in dist/, and check them for PyPI"
	@echo "make sbom         write out/sbom.json, a CycloneDX list of all packages in .venv"
	@echo "make clean        remove everything that make has created"

demo: $(VENV)/.ready
	@$(BIN)/robocache demo $(DEMO_ARGS)

loop: $(VENV)/.ready
	$(clean_shm)
	@$(BIN)/python examples/close_the_loop.py $(LOOP_ARGS)

# The types are checked while the first tests run, which often wait.
test: $(VENV)/.ready
	$(clean_shm)
	@echo "==> ruff, mypy and the tests"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy >$(VENV)/mypy.txt & types=$$!; tests=0; \
	  $(BIN)/python -m pytest -m "not slow and not gpu" -n $(TEST_PROCESSES) --dist loadfile --max-worker-restart=0 \
	    $(PYTEST_ARGS) || tests=$$?; \
	  wait $$types || tests=$$?; cat $(VENV)/mypy.txt; exit $$tests

# One process: they measure memory, start many processes, or use the GPU.
test-slow: $(VENV)/.ready
	$(clean_shm)
	@$(BIN)/python -m pytest -m "slow or gpu" $(PYTEST_ARGS)

test-all:
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-slow

soak: $(VENV)/.ready
	@$(BIN)/python test/soak.py $(SOAK_ARGS)

check: $(VENV)/.ready
	@echo "==> ruff and mypy"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy

# Every page is read again: Sphinx warns of a page when it reads it only.
docs: $(VENV)/.docs
	@$(BIN)/python docs/generate.py
	@$(BIN)/python -m sphinx -W --keep-going -E -q docs docs/_build
	@$(BIN)/python docs/check_links.py docs/_build
	@echo "==> docs/_build/index.html"

$(VENV)/.docs: $(VENV)/.ready
	$(call quietly,robocache_ros with [docs],$(BIN)/pip install --no-build-isolation -e ".[docs]")
	@touch $@

# What PyPI gets. From a clean tree: setuptools puts what an earlier build has left into the wheel.
dist: $(VENV)/.ready
	@rm -rf build dist
	@$(BIN)/python -m build --no-isolation --quiet .
	@$(BIN)/python -m twine check --strict dist/*

# The packages of .venv with their licenses, as CycloneDX. Its own environment, as the tool is no dependency of ours.
sbom: $(VENV)/.ready
	@$(PYTHON) -m venv .venv-tools && .venv-tools/bin/pip install --quiet cyclonedx-bom
	@mkdir -p out && .venv-tools/bin/cyclonedx-py environment --gather-license-texts \
	  --output-reproducible --output-file out/sbom.json $(BIN)/python
	@echo "==> out/sbom.json"

readers-env: $(READERS:%=.venv-%/.ready)

# One of them, such as lerobot-env.
%-env: .venv-%/.ready ;

# This check comes first, because Python's own error about a missing venv is long and gives no advice.
define checked_python
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found; install Python 3.10 to 3.14, or give one: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' || \
	  { echo "make: $$($(PYTHON) --version) is not 3.10 to 3.14; give another: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "make: $(PYTHON) has no venv; on Debian and Ubuntu: sudo apt install python3-venv"; exit 1; }
endef

$(VENV)/.ready: setup.py setup.cfg package.xml pyproject.toml
	$(checked_python)
	@mkdir -p $(dir $(LOG)) && : >$(LOG)
	$(call quietly,Python environment in $(VENV),$(PYTHON) -m venv $(VENV))
	$(call quietly,$(TORCH),$(BIN)/pip install $(cpu_index) $(TORCH) "setuptools>=64$(comma)<80" wheel)
	$(call quietly,robocache_ros with [$(EXTRAS)],$(BIN)/pip install --no-build-isolation -e ".[$(EXTRAS)]")
	@touch $@

.SECONDEXPANSION:
.venv-%/.ready: LOG = .venv-$*.log
.venv-%/.ready: $$(sort $$(wildcard $(READERS_DIR)/$$*/*.txt))
	$(checked_python)
	@: >$(LOG)
	$(call quietly,the reader $* in .venv-$*,$(PYTHON) -m venv --clear .venv-$*)
	$(call quietly,$(<F) of $*,.venv-$*/bin/pip install $(cpu_index) -r $<)
	$(if $(word 2,$^),$(call quietly,$(notdir $(word 2,$^)) of $*,.venv-$*/bin/pip install --no-deps -r $(word 2,$^)))
	@touch $@

clean:
	rm -rf $(VENV) $(LOG) .venv-lowest .venv-tools .venv-view $(READERS:%=.venv-%) $(READERS:%=.venv-%.log) build dist install log out docs/api docs/_build *.egg-info
