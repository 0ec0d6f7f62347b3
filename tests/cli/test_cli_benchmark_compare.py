"""`bastion benchmark report`, `compare` and `noise`: what they print, write, refuse, and how they exit."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bastion.benchmark import layout
from bastion.benchmark.layout import Matrix, Outcome
from tests.support.simulated_benchmarks import documents, luck, matrix_of, result_of, store_run

CELLS = ("jax", "torch", "numpy")


def stored(bastion, run: str, *, slower: float = 1.0, matrix: Matrix | None = None, **environment: object) -> str:
    """Store a run of three cells with ten repeats in two places, of which torch is slower; return its name."""
    draw = random.Random(run)
    matrix = matrix or matrix_of(CELLS, 10, run=run)
    there = luck(random.Random(1), 2)
    return store_run(bastion.store, matrix, documents(draw, matrix, there, factors={"torch": slower}, **environment))


def test_compare_names_the_cell_that_is_slower(run, bastion) -> None:
    baseline, candidate = stored(bastion, "A"), stored(bastion, "B", slower=1.2)
    done = run("benchmark", "compare", baseline, candidate, "--gate=5%", code=3)
    lines = {line.split()[0]: line for line in done.out.splitlines()}
    assert lines["torch"].endswith("slower")
    assert lines["jax"].endswith("the same")
    assert "bastion: 1 slower, 2 the same" in done.err


def test_compare_exits_with_0_if_nothing_is_slower(run, bastion) -> None:
    baseline, candidate = stored(bastion, "A"), stored(bastion, "B", slower=0.8)
    done = run("benchmark", "compare", baseline, candidate, code=0)
    assert "bastion: 1 faster, 2 the same" in done.err


def test_compare_exits_with_4_if_it_cannot_tell(run, bastion) -> None:
    baseline, candidate = stored(bastion, "A"), stored(bastion, "B")
    done = run("benchmark", "compare", baseline, candidate, "--gate=0.5%", code=4)
    assert "cannot tell" in done.out
    assert "bastion: jax, seconds: cannot tell: the ratio may be on either side of the gate of 0.5 %;" in done.err
    assert "repeats can hold it" in done.err


def test_compare_exits_with_5_if_a_cell_is_missing(run, bastion) -> None:
    baseline = stored(bastion, "A")
    matrix = matrix_of(CELLS[:2], 10, run="B")
    candidate = stored(bastion, "B", matrix=matrix)
    done = run("benchmark", "compare", baseline, candidate, code=5)
    assert "bastion: numpy, seconds: missing: no value in the candidate" in done.err


def test_compare_lists_what_differs_and_compares_nothing(run, bastion) -> None:
    baseline = stored(bastion, "A", driver="535", commit="abc")
    candidate = stored(bastion, "B", driver="550", commit="def")
    done = run("benchmark", "compare", baseline, candidate, code=64)
    assert done.out == ""
    assert "driver  535       550        jax, torch, numpy" in done.err
    assert "use --allow=commit --allow=driver" in done.err
    done = run("benchmark", "compare", baseline, candidate, "--allow=commit", "--allow=driver", code=0)
    assert "bastion: allowed to differ: commit, driver" in done.err
    done = run("benchmark", "compare", baseline, candidate, "--allow=drivers", code=64)
    assert "'drivers' is not a fact of an environment; use one of processor" in done.err


def test_compare_as_json_has_every_number(run, bastion) -> None:
    baseline, candidate = stored(bastion, "A"), stored(bastion, "B", slower=1.2)
    document = json.loads(run("benchmark", "compare", baseline, candidate, "--output=json", code=3).out)
    assert (document["baseline"], document["candidate"], document["exit_code"]) == (baseline, candidate, 3)
    torch = document["cells"][1]
    assert (torch["cell"], torch["verdict"], torch["gate"], torch["unit"]) == ("torch", "slower", 0.05, "s")
    assert 1.05 < torch["low"] < torch["ratio"] < torch["high"]


def test_the_newest_run_of_a_name_is_a_side(run, bastion) -> None:
    baseline, candidate = stored(bastion, "A"), stored(bastion, "B")
    document = json.loads(run("benchmark", "compare", baseline, "sim", "--output=json", code=0).out)
    assert document["candidate"] == candidate
    done = run("benchmark", "compare", candidate, "sim", code=64)
    assert f"both sides are {candidate}; name two runs" in done.err
    for command in ("report", "noise", "compare"):
        operands = [baseline, "sim"] if command == "compare" else ["sim"]
        assert f"bastion: the newest run of sim is {candidate}\n" in run("benchmark", command, *operands, code=0).err


def test_a_run_that_is_dated_in_the_future_is_not_the_newest(run, bastion) -> None:
    stored(bastion, "A")
    candidate = stored(bastion, "B")
    forged = matrix_of(CELLS, 10, run="C").model_copy(update={"run": "99991231T235959Z-00000000"})
    future = stored(bastion, "C", slower=2.0, matrix=forged)
    done = run("benchmark", "noise", "sim", code=0)
    assert (
        f"bastion: {future} is dated in the future, so it is not taken for the newest run; write NAME/RUN" in done.err
    )
    assert f"bastion: the newest run of sim is {candidate}\n" in done.err


def test_of_many_differences_some_are_shown_and_tables_are_named(run, bastion) -> None:
    baseline = stored(bastion, "A", variables={f"XLA_{number}": "1" for number in range(500)}, driver="535")
    candidate = stored(bastion, "B", variables={}, driver="550")
    done = run("benchmark", "compare", baseline, candidate, code=64)
    assert "bastion: ... and 461 more facts\n" in done.err
    assert done.err.endswith("or use --allow=driver --allow=variables\n")
    assert len(done.err.splitlines()) < 50


@pytest.mark.parametrize("gate", ["0%", "100%", "5", "-5%", "nan", "five", "1e-3%", ""])
def test_a_gate_is_a_percentage(run, bastion, gate: str) -> None:
    done = run("benchmark", "compare", "a", "b", f"--gate={gate}", code=64)
    assert "must be a percentage above 0% and below 100%, like --gate=5%" in done.err


def test_a_baseline_that_is_gone_is_told(run, bastion) -> None:
    stored(bastion, "B")
    done = run("benchmark", "compare", "sim/20250101T000000Z-00000000", "sim", code=64)
    assert "sim has no run 20250101T000000Z-00000000: it was deleted" in done.err
    assert "no benchmark 'other' was run" in run("benchmark", "compare", "other", "sim", code=64).err


def test_a_malformed_matrix_is_told(run, bastion) -> None:
    name = stored(bastion, "A")
    key = f"benchmarks/{name}/matrix.json"
    found = bastion.store.get(key)
    bastion.store.put(key, found.data.replace(b'"format":1', b'"format":7'), generation=found.meta.generation)
    done = run("benchmark", "noise", name, code=1)
    assert f"bastion: {key} is not readable: format: " in done.err


def test_noise_shows_the_gate_that_is_held(run, bastion) -> None:
    name = stored(bastion, "A")
    done = run("benchmark", "noise", name, code=0)
    header, *rows = done.out.splitlines()
    assert header.split() == ["CELL", "METRIC", "JOBS", "NOISE", "ASSUMED", "HOLDS", "GATE", "REPEATS", "FOR", "GATE"]
    assert len(rows) == 3
    document = json.loads(run("benchmark", "noise", name, "--output=json").out)
    assert 0.01 < document[0]["assumed"] < 0.03
    assert document[0]["places"] == 2


def test_noise_refuses_a_finer_gate_with_the_repeats_that_it_takes(run, bastion) -> None:
    name = stored(bastion, "A")
    done = run("benchmark", "noise", name, "--gate=1%", code=64)
    assert "the gate of 1 % is too fine: 10 repeats of " in done.err
    assert "use repeats = " in done.err
    run("benchmark", "noise", name, "--gate=20%", code=0)
    assert "make the jobs less noisy" in run("benchmark", "noise", name, "--gate=0.001%", code=64).err


def test_noise_that_is_unknown_holds_no_gate(run, bastion) -> None:
    matrix = matrix_of(["a"], 1)
    name = store_run(bastion.store, matrix, [result_of("a", 1, 1.0)])
    done = run("benchmark", "noise", name, "--gate=20%", code=64)
    assert "the noise of seconds in a is unknown (1 job with a value; at least 2 are required)" in done.err


def test_report_writes_beside_the_run(run, bastion) -> None:
    name = stored(bastion, "A")
    done = run("benchmark", "report", name, code=0)
    assert "bastion: wrote " in done.err
    assert f"/benchmarks/{name}/report/index.html" in done.err
    for file in ("index.html", "report.md", "report.csv", "summary.json"):
        assert bastion.store.head(f"benchmarks/{name}/report/{file}") is not None
    assert done.out.splitlines()[0].split() == ["CELL", "METRIC", "JOBS", "MEDIAN", "INTERVAL"]


def test_report_into_a_folder_leaves_the_bucket_alone(run, bastion, tmp_path: Path) -> None:
    name = stored(bastion, "A")
    run("benchmark", "report", name, f"--dir={tmp_path / 'new' / 'report'}", code=0)
    assert (tmp_path / "new" / "report" / "index.html").read_text("utf-8").startswith("<!doctype html>")
    assert bastion.store.head(layout.report("sim", name.partition("/")[2], "index.html")) is None
    (tmp_path / "file").write_text("")
    done = run("benchmark", "report", name, f"--dir={tmp_path / 'file'}", code=64)
    assert "cannot write the report into" in done.err


def test_report_of_a_cell_without_values_exits_with_5(run, bastion) -> None:
    matrix = matrix_of(["a", "b"], 1)
    failed = result_of("a", 1, outcome=Outcome.FAILED, reason="exited with code 1\x1b[31m")
    name = store_run(bastion.store, matrix, [failed, result_of("b", 1, 1.0)])
    done = run("benchmark", "report", name, code=5)
    assert "bastion: a, repeat 1 (job sim-0-1): failed: exited with code 1\\x1b[31m" in done.err
    document = json.loads(run("benchmark", "report", name, "--output=json", code=5).out)
    assert document["cells"][1]["metrics"]["seconds"]["median"] == 1.0


def test_report_tells_a_few_of_many_problems(run, bastion) -> None:
    name = store_run(bastion.store, matrix_of(["a"], 14), [None] * 14)
    done = run("benchmark", "report", name, code=5)
    assert done.err.count("no result is there") == 10
    assert "... and 4 more; the report has all of them" in done.err
