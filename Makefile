# Every target sets itself up: .venv is made from requirements.lock, and brought up to date when that or pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: setup demo test test-avx2 test-matrix lint docs bench chaos

setup: $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/stepsnet demo

test: $(INSTALLED)
	$(BIN)/python -m pytest

# The part of the suite whose numbers depend on the CPU, on the kernels of an AVX2 machine with one thread. Where the CPU
# has no more than AVX2, `make test` is that already. Left out is what takes long and says little about numbers.
NUMERICAL = tests/macro tests/blocks tests/models tests/surgery \
  -k "not compile and not export and not come_back and not used_as_before and not captured \
  and not costs_json and not graph and not jit and not test_planning and not bad_input"
AVX2 = ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2
SSE41 = ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default

test-avx2: $(INSTALLED)
	@if $(BIN)/python -c "import torch; raise SystemExit(torch.backends.cpu.get_cpu_capability() != 'AVX2')"; then \
	  echo "test-avx2: this CPU has no more than AVX2, so make test ran on these kernels"; \
	else $(AVX2) OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(NUMERICAL); fi

# The whole suite on every setting of docs/reference/maintainers.md.
test-matrix: $(INSTALLED)
	$(BIN)/python -m pytest
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest
	$(AVX2) OMP_NUM_THREADS=1 $(BIN)/python -m pytest
	$(AVX2) OMP_NUM_THREADS=2 $(BIN)/python -m pytest
	$(SSE41) OMP_NUM_THREADS=1 $(BIN)/python -m pytest
	$(SSE41) OMP_NUM_THREADS=2 $(BIN)/python -m pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/vulture

docs: $(INSTALLED)
	$(BIN)/python -m tools.site

bench: $(INSTALLED)
	$(BIN)/python -m tests.checks.processes imports
	$(BIN)/python -m tests.checks.overhead loop
	$(BIN)/python -m tests.checks.overhead gamma
	$(BIN)/python -m stepsnet.research.bench.checks generation
	$(BIN)/python -m stepsnet.research.bench.checks construction
	$(BIN)/stepsnet bench speed deit_tiny resnet18 --against timm --batch 8 --mode inference training
	$(BIN)/stepsnet bench speed swin_tiny --against timm --batch 8 --rounds 7
	$(BIN)/stepsnet bench speed steps_deit_tiny --against baseline --batch 8 --mode inference training
	$(BIN)/python -m tests.checks.processes loading
	$(BIN)/python -m stepsnet.research.bench.checks compile

chaos: $(INSTALLED)
	$(BIN)/python -m tests.checks.chaos

# The .pth file lets a plain `import timm` work: torchvision's wheel is a CUDA build, and torch may be a CPU build.
# `compat` adds the source folder to the path, where type checkers find it; they do not find setuptools' import hooks.
# The project is built by the setuptools of the lock (--no-build-isolation), so that nothing unpinned is fetched for it.
$(INSTALLED): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --requirement requirements.lock
	$(BIN)/python -m pip install --no-deps --no-build-isolation --editable . --config-settings editable_mode=compat
	echo 'import stepsnet.optional; stepsnet.optional.TorchvisionFinder.install()' > \
	  $$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/stepsnet-torchvision.pth
	touch $@
