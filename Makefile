# Two commands on a fresh machine (Python 3.11 or 3.12, nothing else): `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What plans are judged by: its branches are nearly all run by the tests, or the tests fail.
JUDGES := hyperopt/script.py,hyperopt/replay.py,hyperopt/validate.py,hyperopt/legality.py

.PHONY: demo test lint openapi bench bench-addresses bench-cost bench-exhaustive bench-gate bench-readers bench-sharding bench-solver bench-stages bench-growth bench-placement bench-joint bench-whatif bench-robust clean

demo: $(READY)
	$(BIN)/hyperopt demo -o demo-out

test: lint
	$(BIN)/python -m pytest --cov=hyperopt --cov-branch --cov-report=
	$(BIN)/python -m coverage report --include=$(JUDGES) --fail-under=95

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

openapi: $(READY)
	$(BIN)/python -m api.openapi docs/reference/openapi.json

bench: $(READY)
	$(BIN)/python -m bench.replay
	$(BIN)/python -m bench.jobs

# Hours; stopped, both go on where they were. What can be asked for: docs/bench.md, for example ARGS='--sizes small'.
bench-solver: $(READY)
	$(BIN)/python -m bench.solver $(ARGS)

bench-growth: $(READY)
	$(BIN)/python -m bench.growth $(ARGS)

bench-addresses: $(READY)
	$(BIN)/python -m bench.addresses

# Some quarter of an hour.
bench-stages: $(READY)
	$(BIN)/python -m bench.stages $(ARGS)

# Some minutes for each budget and side.
bench-joint: $(READY)
	$(BIN)/python -m bench.joint $(ARGS)

# A quarter of an hour: the demo model is captured at four sizes, twice. Needs a calibration (bench-cost leaves one).
bench-whatif: $(READY)
	$(BIN)/python -m bench.cost_whatif $(ARGS)

# Some minutes; ARGS='--model MODEL', of `hyperopt cost fit`.
bench-robust: $(READY)
	$(BIN)/python -m bench.robust $(ARGS)

# Some minutes. Fresh recordings: python -m bench.gate_record; ARGS='--otava PYTHON' for that rival.
bench-gate: $(READY)
	$(BIN)/python -m bench.gate $(ARGS)

bench-readers: $(READY)
	$(BIN)/python -m bench.readers

# Half an hour; stopped, it goes on where it was.
bench-sharding: $(READY)
	$(BIN)/python -m bench.sharding $(ARGS)

# Ten minutes.
bench-placement: $(READY)
	$(BIN)/python -m bench.placement $(ARGS)

# A quarter of an hour, most of it measuring this CPU; what is measured is kept in build/bench.
bench-cost: $(READY)
	$(BIN)/python -m bench.cost $(ARGS)

bench-exhaustive: $(READY)
	$(BIN)/python -m bench.exhaustive

clean:
	rm -rf $(VENV) .venv-client .venv-service build demo-out

# An interrupted installation leaves no mark and is taken up again.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mindspore,dev]'
	touch $@
