# `make` lists the targets. Each sets up its own virtual environment first, in .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-browser conformance test-matrix bench experiments lint format clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 15

# torch first and by itself: a CPU build where pip is given one, and never a second one for another package's sake.
$(READY): setup.py pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[test,lint,bench,tensorboard,zstd]"
	touch $(READY)

demo: $(READY) ## train a translation model on the built-in corpus, score it and show how to load it
	$(BIN)/vanilla train configuration/demo.yaml --overwrite_output_dir true

test: $(READY) ## run the tests, on all cores
	$(BIN)/pytest -m "not slow and not browser" -n auto --dist loadfile

test-slow: $(READY) ## run the tests that take minutes
	$(BIN)/pytest -m slow

test-browser: $(READY) ## run the tests of the page in headless Chromium (Debian's chromium and chromium-driver)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[browser]"
	$(BIN)/pytest -m browser

test-matrix: ## run the tests with the lowest and the newest transformers that setup.py admits
	PYTHON=$(PYTHON) tests/matrix.sh

# ARGS are pytest's: `make conformance ARGS='-m "not torch_compile_test"'` leaves out those that compile.
conformance: $(READY) ## run the Transformers library's own common tests on our models
	$(BIN)/pytest tests/conformance -n auto $(ARGS)

# DATA is a folder of English and German, such as Multi30k (default: the built-in corpus); MODEL a model trained on it.
bench: $(READY) ## measure training, decoding and attention beside the library's Marian and torch.nn.Transformer
	$(BIN)/python -m benchmarks.training $(if $(DATA),--data_dir $(DATA))
	$(BIN)/python -m benchmarks.decoding
	$(BIN)/vanilla experiment attention_backends --size full --output_dir build/experiments
	$(if $(DATA),PATH=$(BIN):$$PATH $(BIN)/python -m benchmarks.end_to_end --data_dir $(DATA))
	$(if $(MODEL),$(BIN)/python -m benchmarks.translating $(MODEL) --source $(DATA)/test_201[67]_flickr.en*)
	$(if $(MODEL),rm -rf build/int8 && $(BIN)/vanilla convert $(MODEL) build/int8 --to ctranslate2 --quantization int8)
	$(if $(MODEL),$(BIN)/python -m benchmarks.translating $(MODEL) --source $(DATA)/test_201[67]_flickr.en* --engines build/int8)

# DATA is a folder with multi30k/ and others; SIZE small (minutes), full (docs/experiments.md) or published (a GPU).
experiments: $(READY) ## repeat the paper's experiments in small
	$(BIN)/vanilla experiment all --output_dir build/experiments --size $(or $(SIZE),small) $(if $(DATA),--data_dir $(DATA))

lint: $(READY) ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## mend what can be mended of style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the virtual environment and what was built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
