"""What is read of a run, and which values of a job count."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from typing import Any

import pytest

from bastion.benchmark import layout
from bastion.benchmark.layout import Better, Metric, Outcome, Value
from bastion.benchmark.measurements import find_run, measured, read_run, runs
from bastion.core.bucket.results import Environment
from bastion.core.errors import InvalidDocument, Refused
from bastion.testing.counting_store import CountingStore
from bastion.testing.memory_store import MemoryStore
from tests.support.simulated_benchmarks import METRIC, documents, luck, matrix_of, result_of, store_run


def steps(*given: tuple[float, int | None]) -> dict[str, list[Value]]:
    return {METRIC: [Value(value=value, step=step) for value, step in given]}


def test_a_job_is_the_median_of_its_values_after_the_warmup() -> None:
    matrix = matrix_of(["c"], 1, warmup=2)
    result = result_of("c", 1, values=steps((100.0, 1), (90.0, 2), (3.0, 3), (1.0, 4), (2.0, 5)))
    assert measured(matrix, 1, "c-1", result).values == {METRIC: 2.0}


def test_values_without_a_step_count_after_as_many() -> None:
    matrix = matrix_of(["c"], 1, warmup=2)
    result = result_of("c", 1, 100.0, 90.0, 3.0, 1.0, 2.0)
    assert measured(matrix, 1, "c-1", result).values == {METRIC: 2.0}


def test_values_of_the_warmup_alone_are_a_problem() -> None:
    found = measured(matrix_of(["c"], 1, warmup=5), 1, "c-1", result_of("c", 1, 1.0, 2.0))
    assert not found.values
    assert found.problem == "seconds has 2 values, all within the warmup of 5"


def test_a_total_has_no_warmup() -> None:
    matrix = matrix_of(["c"], 1, warmup=5)
    assert measured(matrix, 1, "c-1", result_of("c", 1, 60.0)).values == {METRIC: 60.0}
    two = result_of("c", 1, 60.0, 64.0, environment=Environment(hosts=2))
    assert measured(matrix, 1, "c-1", two).values == {METRIC: 62.0}


def test_a_value_in_another_unit_does_not_count() -> None:
    found = measured(matrix_of(["c"], 1), 1, "c-1", result_of("c", 1, 1.0, units={METRIC: "ms"}))
    assert not found.values
    assert found.problem == "seconds is in ms, but the benchmark says s; correct the command"


def test_a_metric_that_a_job_lacks_is_its_problem() -> None:
    terms = Metric(unit="s", better=Better.LOWER)
    found = measured(matrix_of(["c"], 1, metrics={METRIC: terms, "loss": terms}), 1, "c-1", result_of("c", 1, 1.0))
    assert found.values == {METRIC: 1.0}
    assert found.problem == "the job did not measure loss"


@pytest.mark.parametrize("value", [1e201, -1e101, 5e-324, 1e-101])
def test_a_value_that_no_measurement_is_does_not_count(value: float) -> None:
    found = measured(matrix_of(["c"], 1), 1, "c-1", result_of("c", 1, value, value))
    assert (found.values, found.problem) == (
        {},
        "a value of seconds is not between 1e-100 and 1e+100, so it is no measurement; correct the command",
    )


def test_what_a_failed_job_measured_does_not_count() -> None:
    result = result_of("c", 1, 1.0, outcome=Outcome.FAILED, reason="exited with code 1")
    found = measured(matrix_of(["c"], 1), 1, "c-1", result)
    assert (found.values, found.problem, found.outcome) == ({}, "exited with code 1", Outcome.FAILED)
    silent = measured(matrix_of(["c"], 1), 1, "c-1", result_of("c", 1, outcome=Outcome.CANCELLED))
    assert silent.problem == "the job was cancelled"


def test_a_metric_that_is_not_the_benchmarks_is_ignored() -> None:
    found = measured(matrix_of(["c"], 1), 1, "c-1", result_of("c", 1, 1.0, metric="other"))
    assert found.values == {}


def test_a_stored_run_is_read_again() -> None:
    store = MemoryStore()
    matrix = matrix_of(["a", "b"], 3)
    draw = random.Random(1)
    results = documents(draw, matrix, luck(draw, 1))
    name = store_run(store, matrix, [*results[:4], None, b"{"])
    found = read_run(store, *find_run(store, name))
    assert found.matrix == matrix
    assert [len(cell.values(METRIC)) for cell in found.cells] == [3, 1]
    assert found.cells[1].jobs[1].problem == "no result is there; the run may still go on, or someone deleted it"
    assert found.cells[1].jobs[1].outcome is Outcome.MISSING
    assert "cells/b/3.json is not readable" in found.cells[1].jobs[2].problem


def test_numbers_that_are_none_are_no_values() -> None:
    store = MemoryStore()
    matrix = matrix_of(["a"], 2)
    data = result_of("a", 1, 1.5).to_bytes()
    store_run(store, matrix, [data.replace(b"1.5", b"NaN"), data.replace(b"1.5", b"1e999")])
    first, second = read_run(store, matrix.name, matrix.run).cells[0].jobs
    assert first.problem.endswith("NaN is not valid JSON")
    assert second.problem.endswith("the number 1e999 is too large for JSON")


@pytest.mark.parametrize("name", ["<script>", "../x", "", "a b"])
def test_a_metric_with_such_a_name_is_refused_with_its_document(name: str) -> None:
    matrix = matrix_of(["a"], 1)
    data = matrix.to_bytes().replace(b'"seconds"', f'"{name}"'.encode())
    with pytest.raises(InvalidDocument, match=r"matrix\.json is not readable: metrics"):
        layout.read(layout.Matrix, data, "matrix.json")


def test_a_run_without_a_matrix_is_not_the_newest() -> None:
    store = MemoryStore()
    store_run(store, matrix_of(["a"], 1), [None])
    store.put(layout.bench_file("sim", "99991231T235959Z-00000000"), b"", generation=0)
    assert find_run(store, "sim") == ("sim", matrix_of(["a"], 1).run)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "other"}, "is of other/"),
        ({"run": "20260101T000000Z-ffffffff"}, "is of sim/20260101T000000Z-ffffffff"),
        ({"finisher": "other-1-finish"}, "names 'other-1-finish', which is no job of sim"),
        ({"finisher": "../../x"}, "which is no job of sim"),
        ({"cells": matrix_of(["a"], 1).cells * 2}, "names a cell or a job twice"),
    ],
)
def test_a_matrix_that_names_what_is_not_the_runs_is_refused(change: dict[str, Any], message: str) -> None:
    store = MemoryStore()
    matrix = matrix_of(["a"], 1)
    store_run(store, matrix, [None])
    key = layout.matrix(matrix.name, matrix.run)
    data = matrix.model_copy(update=change).to_bytes()
    store.put(key, data, generation=store.get(key).meta.generation)
    with pytest.raises(InvalidDocument, match=message):
        read_run(store, matrix.name, matrix.run)


@pytest.mark.parametrize("others", ["", "A"])
def test_runs_that_are_dated_in_the_future_are_not_the_newest(others: str) -> None:
    store = MemoryStore()
    now = datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp()
    for run in others:
        store_run(store, matrix_of(["a"], 1, run=run), [None])
    for at in ("20260101T001001Z", "99991231T235959Z"):
        store_run(store, matrix_of(["a"], 1).model_copy(update={"run": f"{at}-00000000"}), [None])
    told: list[str] = []
    if others:
        assert find_run(store, "sim", now=now, tell=told.append) == ("sim", matrix_of(["a"], 1).run)
    else:
        with pytest.raises(Refused, match="no benchmark 'sim' was run"):
            find_run(store, "sim", now=now, tell=told.append)
    assert told[0].startswith("sim/99991231T235959Z-00000000 is dated in the future")
    assert find_run(store, "sim", now=now + 1)[1] == "20260101T001001Z-00000000"
    assert find_run(store, "sim/99991231T235959Z-00000000", now=now)[1] == "99991231T235959Z-00000000"


def test_runs_are_found_oldest_first_for_one_request_each() -> None:
    store = CountingStore(MemoryStore())
    for run in "CAB":
        matrix = matrix_of(["a"], 5, run=run)
        store_run(store, matrix, [None] * 5)
    store.put("benchmarks/simple/x", b"", generation=0)
    before = store.requests
    assert [run[-1] for run in runs(store, "sim")] == ["1", "2", "3"]
    assert store.requests - before == 4
    assert find_run(store, "sim") == ("sim", matrix_of(["a"], 1, run="C").run)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "sim/20260101T000000Z-ffffffff",
            "it was deleted, or belongs to another bastion; its newest: 20260101T000000Z",
        ),
        ("other", "no benchmark 'other' was run on this bastion"),
        ("other/20260101T000000Z-ffffffff", "no benchmark 'other' was run on this bastion"),
        ("../sim", "is not a run; write NAME/RUN"),
        ("sim/latest", "is not a run"),
        ("", "is not a run"),
    ],
)
def test_a_run_that_is_gone_or_none_is_refused(text: str, message: str) -> None:
    store = MemoryStore()
    store_run(store, matrix_of(["a"], 1), [None])
    with pytest.raises(Refused, match=message):
        read_run(store, *find_run(store, text))
