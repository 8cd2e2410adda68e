# Everything runs in .venv, which `make install` creates. `make` alone lists the targets.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
WITH_DATASETS := .venv/.installed-datasets
# One process a core: the models of tests are too small for a second thread.
PARALLEL := -n auto --dist worksteal
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Options of a benchmark, such as OPTIONS="--only fp32 --minutes 10", OPTIONS=--quick (a fraction of the
# work) or OPTIONS=--fresh (measure again); `python -m benchmarks --help` lists all. Options of tests
# are those of pytest.
OPTIONS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-docs test-all check format \
	bench-pretrain bench-gpt bench-finetune bench-finetune-speed bench-distill bench-families bench-elmo bench-embed bench-latency bench-stream bench-search bench-serve bench-prepare \
	bench-startup bench-gradients bench-translate bench-generate bench-write bench-characters bench-prompts bench-few bench-history bench-scale bench-busy bench-speedrun bench-experiments bench-defaults gpu-check bench-report

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-21s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(INSTALLED) ## create .venv and install bertkit with what tests need

# Stamps, so that nothing is installed again until what to install has changed.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(PIP) -e '.[dev]'
	touch $@

$(WITH_DATASETS): $(INSTALLED)
	$(PIP) datasets
	touch $@

demo: install ## raw text to a fine-tuned BERT on this machine, with a report (minutes)
	$(BIN)/bertkit demo

test: install ## the tests without the slow ones
	$(BIN)/python -m pytest -m 'not slow' $(PARALLEL) $(OPTIONS)

test-docs: install ## README, tutorial, course and guides, run as a user would
	$(BIN)/python -m pytest tests/docs $(PARALLEL) $(OPTIONS)

test-all: install ## every test
	$(BIN)/python -m pytest $(PARALLEL)

check: install ## format, lint, types, floors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/architecture

format: install ## rewrite the files as `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-pretrain: install ## pretraining steps, against transformers
	$(BIN)/python -m benchmarks pretrain $(OPTIONS)

bench-finetune: install ## fine-tuning, against Trainer (hours, goes on where it stopped)
	$(BIN)/python -m benchmarks finetune $(OPTIONS)

bench-finetune-speed: install ## its times alone, of some rows (minutes)
	$(BIN)/python -m benchmarks finetune --speed $(OPTIONS)

bench-distill: install ## students of 3 and 2 layers, against their teacher (hours)
	$(BIN)/python -m benchmarks distill $(OPTIONS)

bench-families: install ## BERT and its relatives from the same text, against transformers (an hour)
	$(BIN)/python -m benchmarks families $(OPTIONS)

bench-elmo: install ## an ELMo's features against static vectors, CoNLL-2003
	$(BIN)/python -m benchmarks elmo $(OPTIONS)

bench-embed: install ## sentence embeddings, against sentence-transformers, ONNX Runtime, OpenVINO
	$(BIN)/python -m benchmarks embed $(OPTIONS)

bench-translate: install ## training and decoding of translation, against transformers, joeynmt, CTranslate2
	$(BIN)/python -m benchmarks translate $(OPTIONS)

bench-generate: install ## what SmolLM2 writes, against transformers
	$(BIN)/python -m benchmarks generate $(OPTIONS)

bench-characters: install ## a GPT of characters, against nanoGPT's recipe
	$(BIN)/python -m benchmarks characters $(OPTIONS)

bench-prompts: install ## labels of SST-2 that SmolLM2 gives by prompts
	$(BIN)/python -m benchmarks prompts $(OPTIONS)

bench-few: install ## 8, 16 and 64 rows a label: by pairs, plain, frozen (SST-2, TREC; hours)
	$(BIN)/python -m benchmarks few $(OPTIONS)

bench-history: install ## an LSTM, attention and a Transformer at one budget; training against joeynmt (an hour)
	$(BIN)/python -m benchmarks history $(OPTIONS)

gpu-check: install ## on a GPU: parity, packed beside alone, tokens/s and MFU of BERT-base (ten minutes)
	$(BIN)/python -m benchmarks gpu $(OPTIONS)

bench-scale: install ## several processes beside one, and after kills; accelerate beside (half an hour)
	$(BIN)/python -m benchmarks scale $(OPTIONS)

bench-busy: install ## what a busy neighbour costs training and embedding
	$(BIN)/python -m benchmarks busy $(OPTIONS)

bench-speedrun: install ## what an hour buys, against tuned transformers, and how soon (150 minutes)
	$(BIN)/python -m benchmarks speedrun $(OPTIONS)

bench-experiments: install ## what each setting is worth to an encoder that learns for minutes (on a GPU, minutes)
	$(BIN)/python -m benchmarks experiments $(OPTIONS)

bench-defaults: install ## what each default of fine-tuning is worth, beside Trainer (on a GPU, minutes)
	$(BIN)/python -m benchmarks defaults $(OPTIONS)

bench-write: install ## subjects for mails (AESLC), from nothing and pretrained
	$(BIN)/python -m benchmarks write $(OPTIONS)

bench-gpt: install ## labels from a GPT-mini, pretrained and untrained (SST-2, TREC)
	$(BIN)/python -m benchmarks gpt $(OPTIONS)

bench-latency: install ## one query at a time, against the same
	$(BIN)/python -m benchmarks latency $(OPTIONS)

bench-stream: install ## memory while a million texts are embedded
	$(BIN)/python -m benchmarks stream $(OPTIONS)

bench-search: install ## a search engine over SciFact, against sentence-transformers and faiss
	$(BIN)/python -m benchmarks search $(OPTIONS)

bench-serve: install ## a server under load, against FastAPI around sentence-transformers
	$(BIN)/python -m benchmarks serve $(OPTIONS)

bench-prepare: $(WITH_DATASETS) ## corpus preparation, against datasets.map
	$(BIN)/python -m benchmarks prepare $(OPTIONS)

bench-startup: install ## a fresh process to its first embedding, against sentence-transformers
	$(BIN)/python -m benchmarks startup $(OPTIONS)

bench-gradients: install ## how far gradients in bf16 are from fp32, beside transformers
	$(BIN)/python -m benchmarks gradients $(OPTIONS)

bench-report: install ## the published results as one page with charts
	$(BIN)/python -m benchmarks report
