# Every target works on a machine that has Python 3.11+ with pip, a Rust toolchain, a C compiler and a package index.
# uv goes into a private folder (.tools); nothing outside this folder is touched.

PYTHON ?= python3
BIN := .venv/bin
UV := .tools/bin/uv
RUST_SOURCES := $(shell find rust_core -name '*.rs' -not -path '*/target/*' -not -path '*/fuzz/*') $(shell find rust_core -name Cargo.toml) Cargo.toml Cargo.lock
UV_INSTALL := $(UV) pip install --compile-bytecode --quiet --python $(BIN)/python --constraint constraints.txt

.PHONY: help install demo test busy-test oracle converter schemas clients peers ray cluster soak chaos cluster-chaos run-kills replace-kills hostile function-calls slow gpu mutations check check-style check-types check-rust format bench docs lock wheel clean

help:  ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 16

.tools/bin/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "PyAgent needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "fetching uv (once, into .tools)"
	@$(PYTHON) -m venv .tools && .tools/bin/python -m pip install --quiet --disable-pip-version-check uv

.venv/.created: .tools/bin/uv
	@command -v cargo >/dev/null || { echo "PyAgent's engine is Rust: install the stable toolchain (rustup, or your distribution's cargo >= 1.95), then run make again."; exit 1; }
	@$(UV) venv --quiet --seed --allow-existing --python $(PYTHON) .venv && touch $@

.venv/.installed: .venv/.created $(RUST_SOURCES) pyproject.toml constraints.txt
	@echo "building the Rust core (about three minutes the first time on two cores)"
	@$(UV_INSTALL) --reinstall-package pyagent-fleet --editable . && touch $@

.venv/.dev: .venv/.installed $(wildcard plugins/*/pyproject.toml)
	@$(UV_INSTALL) --group dev $(foreach plugin,$(filter-out plugins/pyagent-ray,$(wildcard plugins/*)),--editable $(plugin))
	@$(UV_INSTALL) --no-deps --editable plugins/pyagent-ray  # without Ray, which `make ray` installs
	@$(BIN)/python -m compileall -q src plugins/*/src && touch $@  # else each program that a test starts compiles it anew

.venv/.docs: .venv/.dev
	@$(UV_INSTALL) --group docs && touch $@

# Apart from the package, as this takes nothing that is being built.
.oracle/.libraries: .tools/bin/uv pyproject.toml constraints.txt
	@echo "installing transformers and torch for the oracle tests (once, about 1 GB, into .oracle)"
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) .oracle
	@$(UV) pip install --quiet --python .oracle/bin/python --constraint constraints.txt -r pyproject.toml --group oracle --group dev && touch $@

.oracle/.installed: .oracle/.libraries .venv/.dev
	@$(UV) pip install --quiet --python .oracle/bin/python --no-deps --editable . && touch $@

.clients/.installed: .venv/.dev
	@echo "installing clients of other people for their tests (once, into .clients)"
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) .clients
	@$(UV) pip install --quiet --python .clients/bin/python --constraint constraints.txt -r pyproject.toml --group dev --group clients && touch $@

install: .venv/.installed  ## Build and install into .venv (gives .venv/bin/pyagent)

demo: install  ## Watch a small fleet solve a real task on the embedded engine
	@PATH="$(CURDIR)/.tools/bin:$$PATH" $(BIN)/pyagent demo

# Runs tests, then those that failed once more, one at a time: what fails beside others and passes alone is named by the
# first summary, and fails nothing. ONCE=yes runs no test twice.
twice = $1 $2$(if $(ONCE),, || { [ $$? = 1 ] && echo "once more, alone, what failed:" && $1 --maxfail 1 --last-failed --last-failed-no-failures none; })

# Three workers for two cores: a quarter of the time a worker waits, for a deadline to pass or a process to end.
test: .venv/.dev  ## The tests; no torch needed. COVERAGE=yes shows the share of lines they run, and takes half as long again
	@rm -f .coverage .coverage.*
	@export PATH="$(CURDIR)/.tools/bin:$$PATH"; $(call twice,$(BIN)/python $(if $(COVERAGE),-m coverage run) -m pytest -q,-n 3)
	@$(if $(COVERAGE),$(BIN)/coverage combine -q && $(BIN)/coverage report)

# Where torch is already, without an environment: PYTHON_GPU=python3.
gpu: $(if $(PYTHON_GPU),,.oracle/.installed)  ## What needs a GPU: its tests, then the benchmark, whose table goes into docs/reference/performance.md
	@$(or $(PYTHON_GPU),.oracle/bin/python) -m pytest -q -m 'gpu or oracle' tests/gpu tests/oracle/test_torch_runner.py \
		tests/oracle/test_triton_*.py
	@$(or $(PYTHON_GPU),.oracle/bin/python) benchmarks/gpu_engine.py --write

# The loops end with the shell that began them, however it ends.
busy-test: .venv/.dev  ## The tests three times beside four busy loops: none may count on a quick machine
	@loops=; for n in 1 2 3 4; do (while kill -0 $$$$ 2>/dev/null; do :; done) & loops="$$loops $$!"; done; \
	trap 'kill $$loops 2>/dev/null' EXIT; trap 'exit 130' INT TERM; \
	passed=0; for n in 1 2 3; do $(MAKE) --no-print-directory test ONCE=yes && passed=$$((passed + 1)); done; \
	echo "$$passed of 3 runs passed beside four busy loops"; [ $$passed = 3 ]

.peers/.installed: .venv/.dev tests/peers/package.json
	@echo "installing llama.cpp's server, litellm's proxy, npm's gateway and clients for the peer tests (once, about 1 GB, into .peers)"
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) .peers
	@$(UV) pip install --quiet --python .peers/bin/python 'xllamacpp>=2026.10' 'litellm[proxy]>=1.106'
	@mkdir -p .peers/node && cp tests/peers/package.json .peers/node
	@! command -v npm >/dev/null || npm install --silent --no-audit --no-fund --prefix .peers/node
	@touch $@

peers: .peers/.installed  ## Real servers and programs of others: llama.cpp, litellm, Portkey's, LM Studio's, Copilot's, Claude Code, Codex, Vercel's ai
	@$(BIN)/python -m pytest -q -m peers tests/peers

.ray/.installed: .venv/.dev
	@echo "installing Ray and torch for its tests (once, about 1.3 GB, into .ray)"
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) .ray
	@$(UV) pip install --quiet --python .ray/bin/python --constraint constraints.txt --group dev 'ray>=2.52' --editable '.[gpu]' --editable plugins/pyagent-ray && touch $@

# Python's own warnings are off: Ray leaves sockets and files to the collector.
ray: .ray/.installed  ## Engines, ranks and agents on a Ray cluster of three nodes on this machine, killed in the middle
	@.ray/bin/python -m pytest -q -W ignore -m ray plugins/pyagent-ray/tests

cluster: .venv/.dev  ## Nodes in network namespaces, with real multicast, loss and partitions (takes root)
	@$(BIN)/python -m pytest -q -m cluster

.peers/.bfcl: .peers/.installed
	@$(UV) pip install --quiet --python .peers/bin/python --no-deps 'bfcl-eval==2026.3.23' && touch $@

function-calls: .peers/.bfcl  ## 200 function calls of two small models, beside llama.cpp's server: valid, right, seconds
	@$(BIN)/python benchmarks/function_calls.py $$(PYTHONPATH=tests $(BIN)/python -c \
		'from support.models import located; print(located("smollm2:135m"), located("gemma3:270m"))')

oracle: .oracle/.installed  ## Compare with transformers, gguf, radon on the same inputs; check the torch runner's types
	@.oracle/bin/basedpyright --project tests/oracle/pyrightconfig.json --pythonpath .oracle/bin/python
	@export OMP_NUM_THREADS=1; $(call twice,.oracle/bin/python -m pytest -q -m 'oracle and not slow' tests/oracle,-n 2 --dist worksteal)

.peers/.llama.cpp: .venv/.dev
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) .peers
	@$(UV) pip install --quiet --python .peers/bin/python 'xllamacpp>=2026.10' && touch $@

# Its sdist carries llama.cpp's converter; the version fixes which one.
.cache/llama.cpp: .venv/.dev
	@echo "fetching llama-cpp-python's sdist, which carries llama.cpp's converter (once, 77 MB, into .cache)"
	@.tools/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python --dest .cache 'llama-cpp-python==0.3.36'
	@mkdir -p $@ && tar xzf .cache/llama_cpp_python-*.tar.gz --directory $@ --strip-components 3 --wildcards '*/vendor/llama.cpp/conversion/*' '*/vendor/llama.cpp/gguf-py/gguf/*'

converter: .oracle/.installed .peers/.llama.cpp .cache/llama.cpp  ## GGUF files by llama.cpp's own converter: transformers' logits, the tokens of llama.cpp's server
	@OMP_NUM_THREADS=1 .oracle/bin/python -m pytest -q -m converter tests/oracle/test_llama_cpp_converter.py tests/oracle/test_llama_cpp_encoders.py tests/oracle/test_llama_cpp_quantize.py

.cache/json-schema-suite: .venv/.dev
	@echo "fetching jsonschema's sdist, which carries the JSON-Schema-Test-Suite (once, into .cache)"
	@mkdir -p $@ && .tools/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary jsonschema --constraint constraints.txt --dest .cache jsonschema
	@tar xzf .cache/jsonschema-*.tar.gz --directory $@ --strip-components 3 --wildcards '*/json/tests/*'

schemas: .cache/json-schema-suite  ## The JSON-Schema-Test-Suite: each schema enforced, or refused with its place
	@$(BIN)/python -m pytest -q -m oracle tests/oracle/test_json_schema_suite.py

# Clients of other people leave sockets and event loops behind, which is told when pytest ends.
clients: .clients/.installed  ## Other people's clients against the server, end to end
	@PYTHONPATH=src .clients/bin/python -m pytest -q -W ignore::pytest.PytestUnraisableExceptionWarning -m clients tests/integration/test_clients.py tests/integration/test_client_conversations.py

soak: .venv/.dev  ## Half an hour of random work on the engine
	@$(BIN)/python benchmarks/soak.py

chaos: .venv/.dev  ## Ten minutes of failing backends under a chain
	@$(BIN)/python benchmarks/chaos.py

cluster-chaos: .venv/.dev  ## A quarter of an hour of killed, paused and parted nodes under 200 clients (takes root)
	@$(BIN)/python benchmarks/cluster_chaos.py

run-kills: .venv/.dev  ## Kill runs with -9 two hundred times, resume them, and compare them with one left alone
	@$(BIN)/python benchmarks/run_kills.py

replace-kills: .venv/.dev  ## Kill `pyagent replace` with -9 a hundred times over CPython's library, and take each change back
	@$(BIN)/python benchmarks/replace_kills.py

hostile: .venv/.dev  ## Each known way to stall or end the server, beside a client that must be answered
	@$(BIN)/python benchmarks/hostile_tour.py

slow: .oracle/.installed  ## Tests that take long (soaks, chaos, ranks that are killed, kernels compiled for a GPU)
	@$(BIN)/python -m pytest -q -m 'slow and not oracle'
	@$(UV) pip install --quiet --python .oracle/bin/python 'mypy>=1.18'
	@PYTHONPATH=tests .oracle/bin/python tests/support/plugin_kinds.py mypy
	@$(UV) pip install --quiet --python .oracle/bin/python 'pref_voting>=1.18'  # half a gigabyte, for one test
	@OMP_NUM_THREADS=1 .oracle/bin/python -m pytest -q -n 2 -m 'slow and oracle' tests/oracle

mutations: .venv/.dev  ## Put faults in on purpose; a test must notice each (builds the extension once)
	@$(BIN)/python tests/mutations/run.py

# The parts do not wait for each other, and each leaves a core idle for a while: so two at once.
check: .venv/.docs  ## Format, lint, types, import rules, clippy, Rust tests, docs
	@$(MAKE) --no-print-directory --jobs 2 --output-sync check-rust check-types check-style docs

check-style: .venv/.dev
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .
	@$(BIN)/lint-imports

check-types: .venv/.dev
	@$(BIN)/basedpyright
	@PYTHONPATH=tests $(BIN)/python tests/support/plugin_kinds.py  # what `pyagent plugins new` writes

check-rust:
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets --quiet -- -D warnings
	@cargo test --workspace --quiet

format:  ## Format everything
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix . && cargo fmt --all

docs: .venv/.docs  ## Build the documentation site into site/, warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # not --quiet: that hides warnings from --strict too

bench: .venv/.dev  ## The speed claims that need nothing else
	@for script in start plugin_start plugin_calls code_health scheduler_overhead kv_quality cpu_engine chain_cost; do $(BIN)/python benchmarks/$$script.py || exit 1; done

wheel: .venv/.dev  ## Build the wheel into dist/
	@$(BIN)/maturin build --release --quiet --out dist

lock: .tools/bin/uv  ## Pin every dependency again (constraints.txt)
	@$(UV) pip compile pyproject.toml --universal --python-version 3.11 --all-extras --group dev --group docs --group oracle --group clients --no-emit-index-url --no-header --no-annotate --quiet --output-file constraints.txt

clean:  ## Remove everything make made
	rm -rf .venv .oracle .clients .peers .ray .tools dist site target
