# Two commands matter: `make demo` shows Bastion at work on this machine, `make test` proves it.
# Everything is installed into .venv; nothing outside of this folder and $BASTION_HOME is touched.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# gsutil pins an older google-auth than the one that Bastion is tested with: it has a virtual environment of its own.
GSUTIL := 5.38
GSUTIL_VENV := $(VENV)/gsutil

# checkov pins dozens of packages.
CHECKOV := 3.3.30
CHECKOV_VENV := $(VENV)/checkov
# uv resolves for all Pythons and machines at once; pip for its own only.
UV := 0.13.9
UV_VENV := $(VENV)/uv
# Coverage-guided fuzzing, for Python 3.11 to 3.13.
ATHERIS := 3.0.0
ATHERIS_FOLDER := $(VENV)/atheris
# Writes the SBOM of an environment.
CYCLONEDX := 7.5.0
CYCLONEDX_VENV := $(VENV)/cyclonedx
# What `make sbom` lists, and `make release` puts into the image.
EXTRAS ?= kubernetes,s3,kms
comma := ,
LOCKS := $(foreach name,base daemon $(subst $(comma), ,$(EXTRAS)),--requirement=bastion/requirements/$(name).lock)
LOCKED := --quiet --disable-pip-version-check --require-hashes --only-binary=:all:

# Wheels to read, not to install: what each Terraform provider accepts (tests/deploy/schema).
BINDINGS := $(VENV)/terraform-bindings

# Without bytecode every process of the tests would compile Bastion anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: bytecode lock lock-image wheel sbom release demo demo-gs demo-s3 demo-k8s benchmark-example test lint gsutil unit fuzz e2e kube kube-test kube-record torch gcloud terraform terraform-schema coverage mutants exhaustive soak long acceptance reference docs clean

demo: $(VENV)/.local
	@./demo.sh $(BIN)

# The same with its bucket behind Cloud Storage's API.
demo-gs: $(VENV)/.local
	@./demo_gs.sh $(BIN)

# The same with its bucket on a real S3 server, and pods as hosts.
demo-s3: $(VENV)/.dev
	@./demo_s3.sh $(BIN)

# The same on an emulated Kubernetes cluster.
demo-k8s: $(VENV)/.kubernetes
	@./demo_k8s.sh $(BIN)

# examples/benchmark on emulated slices, in the frameworks that are installed in .venv: at most a quarter of an hour on two
# cores. The report is in build/benchmark-example.
benchmark-example: $(VENV)/.benchmark
	@./benchmark_example.sh $(BIN)

# Four workers on two cores: half of the tests' time is spent waiting for processes. A file stays with one worker;
# tests/conftest.py orders them.
SUITE := $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

# At most three tests that fail are run again alone, and named.
test: $(VENV)/.dev
	$(MAKE) --no-print-directory --jobs=2 lint gsutil bytecode
	$(SUITE) || { test $$? = 1 && $(BIN)/python tools/run_again.py; }

# Of the tests, whose asserts pytest rewrites: in a new clone each worker would spend twenty seconds of a core on it.
bytecode: $(VENV)/.dev
	$(BIN)/python -m pytest -n 0 --collect-only -qq >/dev/null || true

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/terms.py
	$(BIN)/python tools/lock.py --check
	$(BIN)/python tools/licenses.py --check

# The tests that open no sockets and start no processes, in under a minute and a half.
unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/unit tests/golden

e2e: $(VENV)/.dev
	$(SUITE) -m e2e

# A real Kubernetes API server from Debian sid's packages, into ~/.cache/bastion-kube: 411 MB of downloads, three minutes
# of two cores. `kube-test` sends the corpus of tests/kube to it and to the emulated one; `kube-record` writes its answers
# down, which `make test` holds the emulated one to.
kube:
	tests/kube/apiserver/build.sh

# The tests with PyTorch, on CPUs; it is not part of `make test`, because of its size.
torch: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,kubernetes,local,torch]'
	$(BIN)/python -m pytest -n 0 tests/e2e/test_kubernetes_gpus.py tests/e2e/test_kubernetes_examples.py \
	  tests/integration/examples tests/e2e/test_gpu_training.py

kube-test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 0 -m kube

kube-record: $(VENV)/.dev
	$(BIN)/python -m tests.kube.record

# The bindings of docs/how-to/run-on-gcp.md, made by the installed gcloud at the storage endpoint: a minute.
gcloud: $(VENV)/.dev
	$(BIN)/python -m pytest -n 0 -m gcloud tests/contract/test_gcloud.py

# deploy/terraform against the providers' published bindings (110 MB, once), checkov, and Terraform itself where it is
# installed: about two minutes on two cores. `terraform-schema` writes down what the bindings say.
terraform: $(VENV)/.dev $(CHECKOV_VENV)/.$(CHECKOV) $(BINDINGS)/.complete
	BASTION_CHECKOV=$(CHECKOV_VENV)/bin/checkov BASTION_TERRAFORM_BINDINGS=$(BINDINGS) \
	  $(BIN)/python -m pytest -n 0 -m terraform tests/deploy

terraform-schema: $(VENV)/.dev $(BINDINGS)/.complete
	BASTION_TERRAFORM_BINDINGS=$(BINDINGS) $(BIN)/python -m tests.support.terraform.rewrite_schema

# Every parser of what comes from outside against inputs that reach new branches, for SECONDS in all; goes on where the last
# run ended (docs/development/fuzzing.md). TARGETS names some.
fuzz: $(VENV)/.dev $(ATHERIS_FOLDER)/.$(ATHERIS)
	PYTHONPATH=$(ATHERIS_FOLDER) nice -n 19 $(BIN)/python -m tests.fuzz.guided --seconds=$(or $(SECONDS),600) --targets=$(TARGETS)

# Which branches of the scheduler and the quota no test of theirs takes; there should be none.
coverage: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal \
	  tests/unit/scheduler tests/unit/quota tests/unit/client/quota \
	  $(wildcard $(foreach part,quota simulate why,tests/cli/test_cli_$(part)*.py)) \
	  tests/property tests/golden tests/exhaustive \
	  --cov=quota --cov=scheduler --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=100

# 300 small mistakes in the core of the scheduler, drawn by SEED, that no test notices (docs/development/mutants.md).
mutants: $(VENV)/.dev
	$(BIN)/python bench/mutants.py --seed=$(or $(SEED),1) --mutants=$(or $(MUTANTS),300) --workers=$(or $(WORKERS),2)

# Every small instance of the scheduler's task, 1.2 million of them; `make test` tries a sample.
exhaustive: $(VENV)/.dev
	BASTION_EXHAUSTIVE=all $(BIN)/python -m pytest -n 2 --dist worksteal --timeout=3600 tests/exhaustive

# Thousands of random histories of crashes, lost replies and lost nodes, and fresh examples for the property tests.
soak: $(VENV)/.dev
	BASTION_SIM_SEEDS=3000 BASTION_SIM_HISTORIES=20000 BASTION_BENCHMARK_HISTORIES=200 $(BIN)/python -m pytest -n 2 --timeout=1800 tests/sim
	HYPOTHESIS_PROFILE=soak $(BIN)/python -m pytest -n 2 --timeout=1800 tests/property tests/contract tests/fuzz
	BASTION_SIM_SEEDS=3000 $(BIN)/python -m pytest -n 2 --timeout=1800 tests/adversarial/test_hostile_bucket.py

# 500 jobs on emulated slices with everything going wrong (`make test` runs 16), 200 in an emulated cluster (12), 200
# slices at once, and the daemon's memory over eight minutes: about half an hour on two cores.
long: $(VENV)/.dev
	BASTION_LONG_JOBS=500 BASTION_LONG_CLUSTER_JOBS=200 BASTION_LONG_S3_JOBS=50 $(BIN)/python -m pytest -n 0 -s tests/long
	BASTION_DEATHS=all BASTION_ATTACK_SECONDS=60 $(BIN)/python -m pytest -n 0 -s tests/e2e/test_daemon_death.py \
	  tests/e2e/test_memory_attacks.py tests/sim/test_pod_crashes.py
	BASTION_BENCHMARK_DISASTERS=10 BASTION_BENCHMARK_HISTORIES=200 $(BIN)/python -m pytest -n 0 -s tests/e2e/test_benchmark.py \
	  tests/sim/test_benchmarks.py
	BASTION_TROUBLES=all BASTION_PREEMPTIONS=3 $(BIN)/python -m pytest -n 0 -s tests/e2e/test_kubernetes_trouble.py \
	  tests/e2e/test_kubernetes_training.py tests/e2e/test_several_places.py
	$(BIN)/python bench/many_slices.py --within=30
	$(BIN)/python bench/daemon_memory.py --within=5

# Training on a slice of four hosts whose checkpoints are encrypted, killed and resumed; beside it the same without
# encryption, and what both take; and the trainings of examples/gpu, killed, stuck and preempted. About eight minutes on
# two cores.
acceptance: $(VENV)/.dev
	$(BIN)/python examples/encrypted/acceptance.py --rounds=$(or $(ROUNDS),1)
	BASTION_EXAMPLES=1 $(BIN)/python -m pytest -n 0 tests/e2e/test_kubernetes_examples.py tests/e2e/test_gpu_training.py

# The replay against published figures, and the tables of docs/development/measurements.md: about a quarter of an hour on
# two cores. The trace is not in the repository: TRACE=FILE.csv.gz.
reference: $(VENV)/.dev
	@test -n "$(TRACE)" || { echo "make reference TRACE=FILE: where the Philly trace is (see bench/philly.toml)" >&2; exit 1; }
	BASTION_TRACE="$(abspath $(TRACE))" $(BIN)/python -m pytest -n 0 tests/unit/scheduler/simulation/replay/test_reference.py
	$(BIN)/python bench/yardsticks.py --trace="$(TRACE)" --loads .9 .994 1.095 --checkpoints 1800 0
	$(BIN)/python bench/yardsticks.py --trace="$(TRACE)" --policies bastion --checkpoints 1800 0 --replicates 12

# Rewrites the pages that are generated from the code.
docs: $(VENV)/.dev
	$(BIN)/python docs/render.py

# The lock files of all that VMs, images and agents install, and docs/reference/licenses.md. Versions stay unless
# pyproject.toml rules them out; UPGRADE=NAME takes the newest of one package, UPGRADE=all of all.
lock: $(VENV)/.dev $(UV_VENV)/.$(UV)
	$(BIN)/python tools/lock.py --uv=$(abspath $(UV_VENV)/bin/uv) --upgrade=$(UPGRADE)
	$(BIN)/python tools/licenses.py --uv=$(abspath $(UV_VENV)/bin/uv)

# Names the Dockerfile's base image by its digest.
lock-image: $(VENV)/bin/python
	$(BIN)/python tools/lock_image.py $(DIGEST)

# Bastion's wheel, in dist/. The same commit gives the same bytes.
wheel: $(VENV)/bin/python
	rm -rf build/lib build/bdist.* build/tools dist
	$(BIN)/python -m pip install $(LOCKED) --target=build/tools --requirement=bastion/requirements/build.lock
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) PYTHONPATH=build/tools $(BIN)/python -m pip wheel --quiet \
	  --disable-pip-version-check --no-index --no-deps --no-build-isolation --wheel-dir=dist .
	cd dist && sha256sum *.whl | tee SHA256SUMS

# What is installed with EXTRAS, by name, version and license (CycloneDX), from an environment that the lock files make.
sbom: wheel $(CYCLONEDX_VENV)/.$(CYCLONEDX)
	rm -rf $(VENV)/release
	$(BIN)/python -m venv --without-pip $(VENV)/release
	$(BIN)/python -m pip install $(LOCKED) --ignore-installed --prefix=$(VENV)/release $(LOCKS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --ignore-installed \
	  --prefix=$(VENV)/release dist/*.whl
	$(CYCLONEDX_VENV)/bin/cyclonedx-py environment --validate --output-reproducible --mc-type application \
	  --pyproject pyproject.toml --output-file dist/bastion.cdx.json $(VENV)/release/bin/python
	cd dist && sha256sum *.whl *.json > SHA256SUMS

# A wheel, its SBOM and the image IMAGE=NAME:TAG with EXTRAS. Fails if a lock file is stale, or the base image has no digest.
release: lint
	@test -n "$(IMAGE)" || { echo "make release IMAGE=NAME:TAG: what the image is called" >&2; exit 1; }
	@test -z "$$(git status --porcelain)" || { echo "make release: there are changes that are not committed" >&2; exit 1; }
	$(BIN)/python tools/lock_image.py --check
	$(MAKE) sbom
	docker build --build-arg=EXTRAS=$(EXTRAS) --tag=$(IMAGE) .

gsutil: $(GSUTIL_VENV)/.$(GSUTIL)

$(GSUTIL_VENV)/.$(GSUTIL): $(VENV)/bin/python
	rm -rf $(GSUTIL_VENV)
	$(BIN)/python -m venv $(GSUTIL_VENV)
	$(GSUTIL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'gsutil==$(GSUTIL)'
	@touch $@

$(UV_VENV)/.$(UV): $(VENV)/bin/python
	rm -rf $(UV_VENV)
	$(BIN)/python -m venv $(UV_VENV)
	$(UV_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'uv==$(UV)'
	@touch $@

$(CYCLONEDX_VENV)/.$(CYCLONEDX): $(VENV)/bin/python
	rm -rf $(CYCLONEDX_VENV)
	$(BIN)/python -m venv $(CYCLONEDX_VENV)
	$(CYCLONEDX_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'cyclonedx-bom==$(CYCLONEDX)'
	@touch $@

$(ATHERIS_FOLDER)/.$(ATHERIS): $(VENV)/bin/python
	rm -rf $(ATHERIS_FOLDER)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target=$(ATHERIS_FOLDER) 'atheris==$(ATHERIS)'
	@touch $@

$(CHECKOV_VENV)/.$(CHECKOV): $(VENV)/bin/python
	rm -rf $(CHECKOV_VENV)
	$(BIN)/python -m venv $(CHECKOV_VENV)
	$(CHECKOV_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'checkov==$(CHECKOV)'
	@touch $@

$(BINDINGS)/.complete: $(VENV)/bin/python tests/deploy/schema/bindings.txt
	rm -rf $(BINDINGS)
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --dest=$(BINDINGS) \
	  --requirement=tests/deploy/schema/bindings.txt
	@touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Bastion needs Python 3.10 or later; $$($(PYTHON) --version) is too old. Try: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "Python's venv module is missing. On Debian or Ubuntu: sudo apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.local: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,kubernetes,local]'
	@touch $@ $(VENV)/.benchmark $(VENV)/.kubernetes $(VENV)/.local

$(VENV)/.kubernetes: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[kubernetes,local]'
	@touch $@ $(VENV)/.local

$(VENV)/.benchmark: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local,plot]'
	@touch $@ $(VENV)/.local

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
