# `make run` and `make test` are all the set-up there is.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Waiting threads yield the core: two jobs on few cores do not stall each other.
export OMP_WAIT_POLICY ?= PASSIVE
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: run test lint install notebook bench-quality bench-speed bench-index bench-plan bench-million bench-data bench-related bench-pml bench-pecos bench-predict bench-checkpoint bench-results bench-launches gpu-check chaos clean

run: install  ## train UniDEC on the embedded data and print its table
	$(BIN)/xmclab run recipe=unidec loss.clf=ds+bce

test: install lint  ## everything that must hold
	$(BIN)/pytest -n 2 --dist worksteal

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

notebook: install  ## execute examples/notebook and keep what its cells show
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[notebook]"
	$(BIN)/python examples/notebook/execute.py

bench-quality: install  ## quality on the embedded data over three seeds: benchmarks/quality/debian.md
	$(BIN)/python benchmarks/quality/quality.py debian --seeds 3

bench-speed: install  ## every speed goal beside its alternatives: benchmarks/speed/results.md
	$(BIN)/python benchmarks/speed/run.py

bench-index: install  ## exact and approximate search, and what index=auto makes of them: benchmarks/index/results.md
	$(BIN)/python benchmarks/index/compare.py

bench-plan: install  ## what `xmclab plan` says beside what the run takes: benchmarks/plan/results.md
	$(BIN)/python benchmarks/plan/compare.py

MILLION := runs/million-data

bench-million: install  ## a run with a million labels from end to end: benchmarks/speed/million.json
	test -d $(MILLION) || $(BIN)/xmclab synthetic $(MILLION) --train 500000 --test 10000 --labels 1000000
	$(BIN)/xmclab run recipe=unidec data=$(MILLION) epochs=2 refresh_every=1 encoder.dim=64 head.de.dim=64 \
		head.clf.dim=64 baseline=none profile=true --json > benchmarks/speed/million.json

bench-data: install  ## reading and tokenising 2 million texts, first and cached run
	$(BIN)/python benchmarks/data/tokens.py --models bag

bench-related: install  ## a table whose queries are labels, with other defaults: benchmarks/data/related.json
	$(BIN)/python benchmarks/data/related.py

bench-pml: install  ## cost of the losses of pytorch-metric-learning: benchmarks/pml/results.md
	$(BIN)/python benchmarks/pml/cost.py

GENES ?=
bench-pecos: install  ## linear programs on TF-IDF, XR-Linear in an environment of its own: benchmarks/pecos/results.md
	$(BIN)/python benchmarks/pecos/predict.py debian $(GENES)

bench-predict: install  ## one query and many beside encoding and bare products: benchmarks/predict/results.md
	$(BIN)/python benchmarks/predict/compare.py

bench-checkpoint: install  ## cost of checkpoints while a run trains: benchmarks/checkpoint/results.md
	$(BIN)/python benchmarks/checkpoint/cost.py

gpu-check: install  ## on a card: equal to the CPU, waits, peaks, shares of the roof; writes gpu-report.json
	$(BIN)/xmclab doctor --bench --out gpu-report.json

bench-launches: install  ## launches, waits, copies and memory of a step on a fake GPU: benchmarks/gpu/*.md
	$(BIN)/python benchmarks/gpu/launches.py

chaos: install  ## attack runs for minutes, and count what they survive: benchmarks/chaos/results.md
	$(BIN)/python benchmarks/chaos/chaos.py

RESULTS := benchmarks/results
BENCH := $(BIN)/xmclab bench --overwrite
bench-results: install  ## the comparisons of docs/comparisons.md: hours; a second run only makes the reports again
	for spec in reductions losses; do \
		$(BENCH) $$spec epochs=4 refresh_every=2 --tune 8 --jobs 2 --out $(RESULTS)/$$spec || exit 1; done
	for spec in symmetric hard_negatives batches; do \
		$(BENCH) $$spec epochs=4 refresh_every=2 --jobs 2 --out $(RESULTS)/$$spec || exit 1; done
	$(BENCH) negatives --jobs 2 --out $(RESULTS)/negatives
	$(BENCH) pool epochs=2 refresh_every=1 --jobs 2 --out $(RESULTS)/pool
	$(BENCH) systems seed=0 --jobs 2 --out $(RESULTS)/systems
	$(BENCH) systems data=tiny seed=0,1 --tune 2 --jobs 2 --out $(RESULTS)/systems-tuned
	$(BENCH) search epochs=4 refresh_every=2 seed=0,1 --jobs 2 --out $(RESULTS)/search
	test -z "$(GENES)" || $(BENCH) reductions data=$(GENES) epochs=3 refresh_every=1 target=P@1=60 --tune 8 --jobs 2 \
		--out $(RESULTS)/reductions-genes
	test -z "$(GENES)" || $(BENCH) systems data=$(GENES) seed=0 --jobs 2 --out $(RESULTS)/systems-genes
	$(BIN)/python $(RESULTS)/claims.py

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist runs .mypy_cache .pytest_cache .ruff_cache .hypothesis
