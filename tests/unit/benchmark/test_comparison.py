"""Verdicts about two runs, and everything that makes them impossible."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bastion.benchmark.comparison import Comparison, DifferentEnvironments, Verdict, compare
from bastion.benchmark.layout import Better, CellResult, Metric, Outcome
from bastion.benchmark.measurements import RunMeasurements
from bastion.core.bucket.results import Environment
from bastion.core.errors import Refused
from tests.support.simulated_benchmarks import METRIC, matrix_of, result_of, run_of

# Ten jobs with a noise of about 1 %.
STEADY = (1.0, 1.01, 0.99, 1.005, 0.995, 1.012, 0.988, 1.001, 0.999, 1.0)


def run_with(
    *cells: Sequence[float], run: str = "A", metric: Metric | None = None, places: Sequence[str] = ("zone/a",)
) -> RunMeasurements:
    """A run whose cells c0, c1 ... have these jobs, at the places in turns."""
    names = [f"c{number}" for number in range(len(cells))]
    terms = metric or Metric(unit="s", better=Better.LOWER)
    matrix = matrix_of(names, max(map(len, cells)), metrics={METRIC: terms}, run=run)
    results: list[CellResult | str] = []
    for name, values in zip(names, cells, strict=True):
        for repeat in range(matrix.cells[0].repeats[-1].repeat):
            place = places[repeat % len(places)]
            results.append(result_of(name, repeat + 1, values[repeat], place=place) if repeat < len(values) else "gone")
    return run_of(matrix, results)


def times(factor: float) -> list[float]:
    return [value * factor for value in STEADY]


def only(found: Comparison) -> tuple[Verdict, str]:
    (each,) = found.cells
    return each.verdict, each.why


@pytest.mark.parametrize(
    ("factor", "verdict", "code"),
    [
        (1.0, Verdict.SAME, 0),
        (1.02, Verdict.SAME, 0),
        (1.10, Verdict.SLOWER, 3),
        (0.90, Verdict.FASTER, 0),
        (1.05, Verdict.CANNOT_TELL, 4),
        (0.95, Verdict.CANNOT_TELL, 4),
    ],
)
def test_a_verdict_is_about_the_gate(factor: float, verdict: Verdict, code: int) -> None:
    found = compare(run_with(STEADY), run_with(times(factor), run="B"))
    assert only(found)[0] is verdict
    assert found.exit_code == code
    (each,) = found.cells
    assert each.ratio == pytest.approx(factor)
    assert each.low is not None
    assert each.high is not None
    assert each.low < factor < each.high


def test_of_a_rate_more_is_faster() -> None:
    rate = Metric(unit="1/s", better=Better.HIGHER)
    found = compare(run_with(STEADY, metric=rate), run_with(times(1.1), run="B", metric=rate))
    assert only(found)[0] is Verdict.FASTER
    found = compare(run_with(STEADY, metric=rate), run_with(times(0.9), run="B", metric=rate))
    assert only(found)[0] is Verdict.SLOWER


def test_the_gate_is_the_candidates_or_the_given_one() -> None:
    wide = Metric(unit="s", better=Better.LOWER, gate=0.2)
    baseline, candidate = run_with(STEADY), run_with(times(1.1), run="B", metric=wide)
    assert only(compare(baseline, candidate))[0] is Verdict.SAME
    assert only(compare(baseline, candidate, gate=0.05))[0] is Verdict.SLOWER


def test_verdict_and_interval_agree() -> None:
    cells = [times(1 + 0.01 * number) for number in range(14)]
    found = compare(run_with(*[STEADY] * 14), run_with(*cells, run="B"))
    seen = set()
    for each in found.cells:
        assert each.low is not None
        assert each.high is not None
        seen.add(each.verdict)
        assert (each.verdict is Verdict.SLOWER) == (each.low > 1.05)
        assert (each.verdict is Verdict.SAME) == (each.low > 0.95 and each.high < 1.05)
    assert seen == {Verdict.SAME, Verdict.CANNOT_TELL, Verdict.SLOWER}


def test_numbers_without_noise_differ_or_do_not() -> None:
    baseline = run_with([64.0] * 3)
    assert only(compare(baseline, run_with([64.0] * 3, run="B")))[0] is Verdict.SAME
    assert only(compare(baseline, run_with([72.0] * 3, run="B")))[0] is Verdict.SLOWER


def test_the_luck_of_places_cancels() -> None:
    places = ("zone/a", "zone/b")
    uneven = [value * (1.5 if number % 2 else 1.0) for number, value in enumerate(STEADY)]
    found = compare(
        run_with(uneven, places=places), run_with([value * 1.1 for value in uneven], run="B", places=places)
    )
    assert only(found)[0] is Verdict.SLOWER


def test_another_mix_of_places_cannot_be_told() -> None:
    baseline = run_with(STEADY, places=("zone/a", "zone/b"))
    for places in (("zone/c",), ("zone/a",), ("zone/a", "zone/a", "zone/a", "zone/b"), ("zone/a", "")):
        candidate = run_with(times(2.0), run="B", places=places)
        verdict, why = only(compare(baseline, candidate))
        assert verdict is Verdict.CANNOT_TELL
        assert "place" in why
        assert only(compare(baseline, candidate, allowed=["place"]))[0] is Verdict.SLOWER


def test_a_lost_job_does_not_change_the_mix() -> None:
    baseline = run_with(STEADY, places=("zone/a", "zone/b"))
    candidate = run_of(
        matrix_of(["c0"], 10, run="B"),
        [
            *(
                result_of("c0", number + 1, value, place=f"zone/{'ab'[number % 2]}")
                for number, value in enumerate(times(1.1)[:9])
            ),
            "gone",
        ],
    )
    assert only(compare(baseline, candidate)) == (Verdict.SLOWER, "1 of 10 jobs of the candidate has no value")


def test_noise_says_how_many_repeats_hold_the_gate() -> None:
    noisy = [1.0, 1.1, 0.9, 1.05, 0.95]
    verdict, why = only(compare(run_with(noisy), run_with(noisy, run="B")))
    assert verdict is Verdict.CANNOT_TELL
    assert why == "the ratio may be on either side of the gate of 5 %; 70 repeats can hold it"


def test_one_job_on_each_side_cannot_be_told() -> None:
    verdict, why = only(compare(run_with([1.0]), run_with([2.0], run="B")))
    assert verdict is Verdict.CANNOT_TELL
    assert why == "too few jobs to know the noise; use at least 2 repeats, better 10"


def test_an_outlier_does_not_make_a_verdict() -> None:
    verdict, _ = only(compare(run_with(STEADY), run_with([*STEADY[:9], 3.0], run="B")))
    assert verdict is Verdict.CANNOT_TELL


def test_means_that_the_medians_contradict_are_no_verdict() -> None:
    # A third of the candidate's jobs is much slower, time after time.
    found = compare(run_with([1.0] * 60), run_with([1.0] * 40 + [1.4] * 20, run="B", places=("zone/a",)), gate=0.05)
    verdict, why = only(found)
    assert verdict is Verdict.CANNOT_TELL
    assert why == "the medians do not agree: outliers, or several kinds of jobs"


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_value_that_has_no_ratio_cannot_be_told(value: float) -> None:
    verdict, why = only(compare(run_with(STEADY), run_with([*STEADY[:9], value], run="B")))
    assert verdict is Verdict.CANNOT_TELL
    assert why == f"a value is {value:g}; a ratio requires values above 0"


def test_a_metric_in_some_repeats_only_cannot_be_told() -> None:
    matrix = matrix_of(["c0"], 10, run="B")
    results: list[CellResult | str] = [result_of("c0", number + 1, value) for number, value in enumerate(STEADY)]
    results[3] = result_of("c0", 4, metric="other")
    verdict, why = only(compare(run_with(STEADY, places=("zone/host-0",)), run_of(matrix, results)))
    assert verdict is Verdict.CANNOT_TELL
    assert why == "1 job succeeded without this metric; those that have it may be the lucky ones"


def test_a_cell_without_a_value_is_missing() -> None:
    failed: list[CellResult | str] = [result_of("c0", 1, outcome=Outcome.FAILED, reason="exited with code 1")]
    found = compare(run_with(STEADY), run_of(matrix_of(["c0"], 1, run="B"), failed))
    assert only(found) == (Verdict.MISSING, "no value in the candidate")
    assert found.exit_code == 5


def test_a_cell_of_one_run_only_is_missing() -> None:
    found = compare(run_with(STEADY, STEADY), run_with(STEADY, run="B"))
    assert [each.verdict for each in found.cells] == [Verdict.SAME, Verdict.MISSING]
    found = compare(run_with(STEADY), run_with(STEADY, STEADY, run="B"))
    assert [each.why for each in found.cells] == ["", "no value in the baseline"]


def test_slower_weighs_more_than_missing_and_missing_more_than_cannot_tell() -> None:
    baseline = run_with(STEADY, STEADY, STEADY)
    assert compare(baseline, run_with(times(1.05), [], STEADY, run="B")).exit_code == 5
    assert compare(baseline, run_with(times(1.2), [], times(1.05), run="B")).exit_code == 3
    assert compare(baseline, run_with(times(1.05), STEADY, STEADY, run="B")).exit_code == 4


def test_another_unit_or_sense_is_refused() -> None:
    with pytest.raises(Refused, match=r"seconds has the unit s in sim/\S+ and ms in sim/"):
        compare(run_with(STEADY), run_with(STEADY, run="B", metric=Metric(unit="ms", better=Better.LOWER)))
    with pytest.raises(Refused, match=r"seconds has better = lower in sim/\S+ and higher in sim/"):
        compare(run_with(STEADY), run_with(STEADY, run="B", metric=Metric(unit="s", better=Better.HIGHER)))


def test_runs_without_a_common_metric_are_refused() -> None:
    terms = Metric(unit="s", better=Better.LOWER)
    other = run_of(matrix_of(["c0"], 1, metrics={"loss": terms}), ["gone"])
    with pytest.raises(Refused, match="only runs with a common metric can be compared"):
        compare(run_with(STEADY), other)


def environment_run(run: str, **facts: object) -> RunMeasurements:
    place = Environment.model_validate({"place": "zone/a", **facts})
    matrix = matrix_of(["c0", "c1"], 2, run=run)
    return run_of(
        matrix, [result_of(cell, repeat, 1.0 + repeat / 100, environment=place) for cell in "ab" for repeat in (1, 2)]
    )


def test_different_environments_are_listed_and_refused_unless_allowed() -> None:
    baseline = environment_run("A", driver="535", libraries={"jax": "0.6.0"}, variables={"XLA_FLAGS": "a"})
    candidate = environment_run("B", driver="550", libraries={"jax": "0.7.0", "numpy": "2"}, commit="abc")
    with pytest.raises(DifferentEnvironments) as caught:
        compare(baseline, candidate)
    listed = [(each.key, each.baseline, each.candidate) for each in caught.value.differences]
    assert listed == [
        ("commit", "unknown", "abc"),
        ("driver", "535", "550"),
        ("libraries.jax", "0.6.0", "0.7.0"),
        ("libraries.numpy", "unknown", "2"),
        ("variables.XLA_FLAGS", "a", "unknown"),
    ]
    assert [list(each.cells) for each in caught.value.differences] == [["c0", "c1"]] * 5
    assert "or use --allow=commit --allow=driver --allow=libraries.jax" in str(caught.value)
    allowed = ["commit", "driver", "libraries", "variables.XLA_FLAGS"]
    found = compare(baseline, candidate, allowed=allowed)
    assert len(found.allowed) == 5
    with pytest.raises(DifferentEnvironments, match=r"differ in libraries\.numpy,"):
        compare(baseline, candidate, allowed=["commit", "driver", "libraries.jax", "variables"])


@pytest.mark.parametrize("key", ["drivers", "", "processor.x", "libraries.", "../x"])
def test_a_fact_that_does_not_exist_cannot_be_allowed(key: str) -> None:
    with pytest.raises(Refused, match="is not a fact of an environment; use one of processor, "):
        compare(run_with(STEADY), run_with(STEADY, run="B"), allowed=[key])


def test_an_interval_beyond_all_numbers_ends_at_a_million() -> None:
    cells = [[1.0, 1e9]] * 40
    found = compare(run_with(*cells, places=("a", "b")), run_with(*cells[::-1], run="B", places=("b", "a")))
    for each in found.cells:
        assert each.verdict is Verdict.CANNOT_TELL
        assert (each.low, each.high) == (pytest.approx(1e-6), pytest.approx(1e6))
