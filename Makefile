# make check   format, lint, types, unit tests (about a minute on 2 cores)
# make test    these, and every promise once in a real run on this machine or on its Slurm; what depends on Slurm's words
#              on 24.11 too; what CI runs, 12 minutes on 2 cores. Needs root and Debian's slurm-wlm for the Slurm tests,
#              else they skip and say why
# make test-all   all: also the variants, what is mirrored on each version, libraries, and Slurm 26.05 where it can be had
# make test-slurm SLURM=26.05   all Slurm tests on one version: own (this machine's), 22.05, 24.11 or 26.05
# make test-pythons   the tests of make check without torch, on each of Python 3.10 to 3.13 that is here; says which is missing
# make test-torch TORCH='==2.2.*'   trainings, crashes and restarts on this machine with another torch than the pinned one; else the newest
# RECORD=1 with one of these   writes into the README, if nothing failed, on what they passed
# OPTIONS=-v with one of these   options of pytest
# make simulate   simulated runs by the ten thousand; make simulate FIRST=20000 N=1000000 for a night
# make explore    every placement of one fault in a run of 3 nodes and 2 starts; make explore DEPTH=2 MINUTES=60 for two
# make mutate     changes the code of membership in 120 places, one at a time, and says which the simulation does not notice
# make fuzz       mutated answers of Slurm, 100,000 of each that was captured, and as many error files of workers; make fuzz COUNT=1000 for less
# make faults     a table of failures, each made for real: of how many the right class, culprit and cause are told, a quarter of an hour
# make kills      200 random SIGKILLs among 8 ranks in a collective, each of which must be named; KILLS=40 for less
# make soak       all eleven: simulate, fuzz, soak-local, soak-restarts, soak-guard, soak-slurm, soak-stops, soak-limits, soak-states, soak-notices and soak-nfs
# make soak-local   real runs on this machine with 200 random faults, about 20 minutes; FAULTS=1000 for a night
# make soak-restarts   runs that crash 1,000 times and must hold no more at the end than after 50; CYCLES=100 for less
# make soak-guard   1,000 agents frozen, killed or without their guard while they start workers; TRIALS=50 for less
# make soak-slurm   real runs on a Slurm here with 200 random faults, about an hour; SLURM=26.05 on another version
# make soak-stops   100 runs on a Slurm here, each stopped once in one of twelve ways, about 40 minutes; STOPS=20 for less
# make soak-states   a training whose state is in memory, of which 200 ranks are killed: no step lost, the same weights; KILLS=20 for less
# make soak-limits   trainings of 5 minutes under a time limit of 2, requeued, chained and as an array, 10 minutes; SLURM=26.05 on another version
# make soak-notices   50 runs of 8 ranks on 4 nodes, all of which save in a collective on a notice, on this machine and on a Slurm, 40 minutes; NOTICES=5 for less
# make soak-nfs   a Slurm of virtual machines whose shared folder is an NFS export, in ten troubles, 10 minutes; wants root and Debian; NFS=vers=3 for other mount options
# make bench   the figures of docs/benchmarks, beside sbatch and torchrun; wants root, Slurm, strace, a quiet machine and over an hour
# make bench-recovery   of these, restarts and starts beside torchrun alone: about 20 minutes
# make bench-against REV=v0.1.0   the figures that users feel, of this checkout and of another commit in turns, over an hour for all; PROGRAMS=command_line TURNS=4 for less
# make plots   the pictures and tables of docs/benchmarks from the figures that are there
# make docs    the documentation as a site, built strictly into build/site; make docs-serve shows it while you write
# make reference   writes the pages that are made from the code: docs/reference/options.md
# make release   a release up to its upload: checks, sdist and wheel built twice, their parts list, installed and tried; into dist/
# make demo    train the digits example on this machine, as 2 nodes with 2 workers each
PYTHON ?= python3
N ?= 20000
FIRST ?= 0
MUTATIONS ?= 120
DRAW ?= 1
DEPTH ?= 1
MINUTES ?= 60
FAULTS ?= 200
CYCLES ?= 1000
TRIALS ?= 1000
COUNT ?= 100000
KILLS ?= 200
STOPS ?= 100
NOTICES ?= 50
NFS ?= vers=4.2
REV ?= origin/main
TURNS ?= 8
SEED ?= 0
SLURM ?= own
TORCH ?= >=2.2
# With more processes than cores the last ones are for tests that compute (tests/distribution.py): half of the time that
# tests of Slurm and real runs take is waiting.
WORKERS ?= 5
CORES := $(shell getconf _NPROCESSORS_ONLN)
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest $(OPTIONS)
RECORDED := $(if $(RECORD),--record-tested=docs/reference/tested-on.json)
WRITTEN := $(if $(RECORD),$(BIN)/python -m tests.tested_on)

# Hundreds of tests start a Python of their own, which would compile the package again each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: check format test test-all test-slurm test-pythons test-torch demo simulate explore mutate fuzz faults kills soak soak-local soak-restarts soak-guard soak-slurm soak-stops soak-limits soak-states soak-notices soak-nfs bench bench-recovery bench-against plots docs docs-serve reference release clean

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lint,report,test]'
	@touch $@

check: .venv/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) -q -n $(shell expr $(CORES) + 1) --dist worksteal --hypothesis-profile=quick -m "not slurm and not local and not long and not variant"

format: .venv/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: .venv/.installed .venv-hydra/.installed
	$(PYTEST) -n $(WORKERS) --dist loadgroup -m "not variant" --slurm=own,24.11 $(RECORDED)
	$(WRITTEN)

test-all: .venv/.installed .venv-compat/.installed .venv-hydra/.installed
	$(PYTEST) --tell-at-once -n $(WORKERS) --dist loadgroup --slurm=own,24.11,26.05 $(RECORDED)
	$(WRITTEN)

test-slurm: .venv/.installed .venv-compat/.installed .venv-hydra/.installed
	$(PYTEST) -n $(WORKERS) --dist loadgroup -m slurm --slurm=$(SLURM) $(RECORDED)
	$(WRITTEN)

test-pythons: .venv/.installed
	$(BIN)/python -m tests.pythons $(RECORDED)
	$(WRITTEN)

# With another torch, what trains is tried, not what is held against the names and words of the pinned one.
test-torch:
	$(PYTHON) -m venv --clear .venv-torch
	grep -v '^torch==' constraints.txt >.venv-torch/constraints.txt
	.venv-torch/bin/python -m pip install --quiet --constraint .venv-torch/constraints.txt --editable '.[test]' 'torch$(TORCH)'
	.venv-torch/bin/python -m pytest $(OPTIONS) -m "local and not variant" \
		tests/integration/test_tutorials.py tests/integration/test_local_warm.py tests/integration/test_local_memory.py

# An environment as users have it, for tests/compat: torch is that of .venv, and nothing of ours is in it. These
# packages bring numpy, which would change what torch does in all other tests.
.venv-compat/.installed: .venv/.installed
	$(PYTHON) -m venv --without-pip .venv-compat
	$(BIN)/python -c "import importlib.util, os.path as p; print(p.dirname(p.dirname(importlib.util.find_spec('torch').origin)))" \
		> "$$(.venv-compat/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/torch.pth"
	$(BIN)/python -m pip --python .venv-compat/bin/python install --quiet --constraint constraints.txt accelerate lightning transformers
	@touch $@

demo: .venv/.installed
	$(BIN)/hpc-elastic submit examples/digits/job.yaml --site local --follow

simulate: .venv/.installed
	$(BIN)/python -m tests.simulation --every --first $(FIRST) --count $(N)

explore: .venv/.installed
	$(BIN)/python -m tests.simulation.explore --depth $(DEPTH) --minutes $(MINUTES)
	$(BIN)/python -m tests.simulation.explore --depth $(DEPTH) --minutes $(MINUTES) --min 2
	$(BIN)/python -m tests.simulation.explore --depth $(DEPTH) --minutes $(MINUTES) --starts

mutate: .venv/.installed
	$(BIN)/python -m tests.simulation.mutate -n $(MUTATIONS) --draw $(DRAW)

fuzz: .venv/.installed
	$(BIN)/python -m tests.scheduler.slurm.fuzz --first $(FIRST) --count $(COUNT)
	$(BIN)/python -m tests.agent.workers.fuzz --first $(FIRST) --count $(COUNT)

faults: .venv/.installed
	$(BIN)/python -m tests.faults

kills: .venv/.installed
	$(BIN)/python -m tests.faults.kills --count $(KILLS) --seed $(SEED)

soak: simulate fuzz soak-local soak-restarts soak-guard soak-slurm soak-stops soak-limits soak-states soak-notices soak-nfs

soak-local: .venv/.installed
	$(BIN)/python -m tests.soak --first $(FIRST) --faults $(FAULTS)

soak-restarts: .venv/.installed
	$(BIN)/python -m tests.soak.restarts --cycles $(CYCLES) --start fork
	$(BIN)/python -m tests.soak.restarts --cycles $(CYCLES) --start fork --nodes 1 --workers 2 --gloo
	$(BIN)/python -m tests.soak.restarts --cycles $(CYCLES) --states

soak-guard: .venv/.installed
	$(BIN)/python -m tests.soak.guard_trials --first $(FIRST) --trials $(TRIALS)

soak-slurm: .venv/.installed
	$(BIN)/python -m tests.soak.on_slurm --first $(FIRST) --faults $(FAULTS) --slurm $(SLURM)

soak-stops: .venv/.installed
	$(BIN)/python -m tests.soak.stops --first $(FIRST) --stops $(STOPS) --slurm $(SLURM)

soak-states: .venv/.installed
	$(BIN)/python -m tests.soak.saved_steps --kills $(KILLS) --seed $(SEED)
	$(BIN)/python -m tests.soak.saved_steps --kills $(KILLS) --seed $(SEED) --replicated
	$(BIN)/python -m tests.soak.saved_steps --kills $(KILLS) --seed $(SEED) --ddp

soak-notices: .venv/.installed
	$(BIN)/python -m tests.soak.notices --first $(FIRST) --notices $(NOTICES)
	$(BIN)/python -m tests.soak.notices --first $(FIRST) --notices $(NOTICES) --slurm $(SLURM)

soak-limits: .venv/.installed
	$(BIN)/python -m tests.soak.limits --slurm $(SLURM)

soak-nfs: .venv/.installed
	$(BIN)/python -m tests.soak.on_nfs --options $(NFS)

bench: .venv/.installed
	$(BIN)/python -m benchmarks.command_line --json docs/benchmarks/command_line.json
	$(BIN)/python -m benchmarks.agent_cost --json docs/benchmarks/agent_cost.json
	$(BIN)/python -m benchmarks.local_share --json docs/benchmarks/local_share.json
	$(BIN)/python -m benchmarks.slurm_latency --json docs/benchmarks/slurm_latency.json
	$(BIN)/python -m benchmarks.rendezvous_scale --json docs/benchmarks/rendezvous_scale.json
	$(BIN)/python -m benchmarks.head_loss_scale --json docs/benchmarks/head_loss_scale.json
	$(BIN)/python -m benchmarks.node_loss --json docs/benchmarks/node_loss.json
	$(BIN)/python -m benchmarks.slurm_versions --json docs/benchmarks/slurm_versions.json
	$(BIN)/python -m benchmarks.useful_time --json docs/benchmarks/useful_time.json
	$(MAKE) bench-recovery

bench-recovery: .venv/.installed
	$(BIN)/python -m benchmarks.recovery --json docs/benchmarks/recovery.json
	$(MAKE) plots

bench-against: .venv/.installed
	$(BIN)/python -m benchmarks.against $(REV) $(PROGRAMS) --turns $(TURNS)

# An environment of its own: matplotlib brings numpy, and torch imports that where it is.
.venv-plots/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-plots
	.venv-plots/bin/python -m pip install --quiet --constraint constraints.txt matplotlib
	@touch $@

plots: .venv-plots/.installed
	.venv-plots/bin/python -m benchmarks.plots

# An environment of its own: none of it is needed to run or to test.
.venv-docs/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --constraint constraints.txt mkdocs-material
	@touch $@

# Its makers warn of version 2 of mkdocs, which is not asked for here. --quiet would make --strict count no warning.
docs: .venv-docs/.installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

docs-serve: .venv-docs/.installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs serve

reference: .venv/.installed
	$(BIN)/python -m publish.options_page

.venv-release/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/python -m pip install --quiet --constraint constraints.txt build cyclonedx-bom hatchling twine
	@touch $@

release: .venv-release/.installed
	.venv-release/bin/python -m publish.release $(OPTIONS)

# Hydra pins what else would be newer, so it has an environment of its own, which sees all that is in the first one.
.venv-hydra/.installed: pyproject.toml constraints.txt .venv/.installed
	$(PYTHON) -m venv .venv-hydra
	$(BIN)/python -c "import sysconfig; print('import site; site.addsitedir(%r)' % sysconfig.get_path('purelib'))" \
		>"$$(.venv-hydra/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/all-of-venv.pth"
	.venv-hydra/bin/python -m pip install --quiet --constraint constraints.txt hydra-core hydra-submitit-launcher
	@touch $@

clean:
	rm -rf .venv .venv-py* .venv-compat .venv-docs .venv-hydra .venv-plots .venv-release .venv-torch .hypothesis .mypy_cache .ruff_cache .pytest_cache build dist
