"""What the lines of a job mean."""

import json

import pytest

from bastion.benchmark.collect import JobValues
from bastion.benchmark.layout import Value
from bastion.benchmark.results import of_hosts, parse, read_values
from bastion.core import limits
from bastion.core.bucket import keys, result_proofs
from bastion.core.bucket.results import Environment, HostResults
from bastion.core.model.run_public_keys import RunPublicKeys
from bastion.core.run_keys import RunKey
from bastion.testing.memory_store import MemoryStore

KEY, THEIRS = RunKey(b"1" * 32), RunKey(b"t" * 32)
OLDER = RunPublicKeys(uid="u", attempts={1: "", 2: ""})


def document(*lines: str, mllog: tuple[str, ...] = (), attempt: int = 1, code: int | None = 0, **more) -> HostResults:
    environment = Environment(**more)
    return HostResults(
        attempt=attempt, try_number=1, exit_code=code, lines=list(lines), mllog=list(mllog), environment=environment
    )


def event(key: str, value: object = None, *, at: int = 0, **metadata: object) -> str:
    # As mlperf_logging.mllog writes it, with its own order of keys.
    text = {"namespace": "", "time_ms": at, "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return ":::MLLOG " + json.dumps({**text, "metadata": {"file": "train.py", "lineno": 7, **metadata}})


def test_values_keep_their_steps_and_units_and_empty_lines_say_nothing():
    found = parse(document('{"metric": "loss", "value": 2, "step": 1}', "", '{"metric":"s","value":0.5,"unit":"ms"}'))
    assert found.values == {"loss": [Value(value=2.0, step=1)], "s": [Value(value=0.5)]}
    assert found.units == {"s": "ms"}
    assert found.problems == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("seconds 1.5", "not valid JSON"),
        ("[1]", "no object like"),
        ('{"value": 1}', 'no "metric"'),
        ('{"metric": "m", "value": NaN}', "NaN is not valid JSON"),
        ('{"metric": "m", "value": -Infinity}', "-Infinity is not valid JSON"),
        ('{"metric": "m", "value": 1e999}', "too large for JSON"),
        ('{"metric": "m", "value": "1.5"}', "the value of m is 1.5, not a number"),
        ('{"metric": "m", "value": true}', "the value of m is True, not a number"),
        ('{"metric": "m"}', "the value of m is None, not a number"),
        ('{"metric": "m", "value": 1, "step": 1.5}', "the step of m is 1.5"),
        ('{"metric": "m", "value": 1, "step": -1}', "the step of m is -1"),
        ('{"metric": "m", "value": 1, "unit": 3}', "the unit of m is not a text"),
        ('{"metric": "<script>", "value": 1}', "'<script>' is not a valid name"),
        ('{"metric": "../x", "value": 1}', "'../x' is not a valid name"),
        ('{"metric": "m", "metric": "n", "value": 1}', "appears twice"),
        ('{"metric": "m", "value": 1' + ", " * 3 + "}", "not valid JSON"),
        ("[" * 500, "nests deeper"),
        ("\0\ufffd", "not valid JSON"),
    ],
)
def test_a_bad_line_is_told_by_its_number_and_the_others_count(line: str, told: str):
    good = '{"metric": "m", "value": 1}'
    found = parse(document(good, line, good))
    assert found.values == {"m": [Value(value=1.0), Value(value=1.0)]}
    (problem,) = found.problems
    assert problem.startswith("line 2 of the results: ")
    assert told in problem
    assert len(problem) < 300


def test_a_metric_in_two_units_is_told_and_only_the_first_unit_counts():
    found = parse(document('{"metric":"t","value":1,"unit":"s"}', '{"metric":"t","value":900,"unit":"ms"}'))
    assert found.values == {"t": [Value(value=1.0)]}
    assert found.problems == ["line 2 of the results: t is in ms, but an earlier line says s"]


def test_numbers_of_mllog_are_values_by_their_keys_with_the_steps_of_their_metadata():
    found = parse(
        document(
            mllog=(
                event("submission_org", "we"),
                event("global_batch_size", 256),
                event("eval_accuracy", 0.71, epoch_num=4),
                event("tracked_stats", {"throughput": 812.5, "note": "warm"}, step_num=20),
            )
        )
    )
    assert found.values == {
        "global_batch_size": [Value(value=256.0)],
        "eval_accuracy": [Value(value=0.71, step=4)],
        "tracked_stats.throughput": [Value(value=812.5, step=20)],
    }
    assert found.problems == []


def test_intervals_of_mllog_are_seconds():
    found = parse(
        document(
            mllog=(
                event("run_start", at=1_000),
                event("epoch_start", at=1_000, epoch_num=1),
                event("epoch_stop", at=3_500, epoch_num=1),
                event("epoch_start", at=3_500, epoch_num=2),
                event("epoch_stop", at=5_000, epoch_num=2),
                event("run_stop", at=9_000, status="success"),
                event("eval_stop", at=9_500),
            )
        )
    )
    assert found.values == {
        "epoch_seconds": [Value(value=2.5, step=1), Value(value=1.5, step=2)],
        "run_seconds": [Value(value=8.0)],
    }
    assert found.units == {"epoch_seconds": "s", "run_seconds": "s"}


def test_an_aborted_run_has_no_time_and_a_broken_line_is_told():
    found = parse(
        document(mllog=(event("run_start", at=1), event("run_stop", at=9, status="aborted"), ":::MLLOG {", "{}"))
    )
    assert found.values == {}
    assert found.problems[0] == "MLLOG line 2: run_stop says that it was aborted; run_seconds does not count"
    assert found.problems[1].startswith("MLLOG line 3: the document is not valid JSON")
    assert found.problems[2] == 'MLLOG line 4: it has no "key"'


def test_a_time_that_is_no_number_is_told():
    found = parse(document(mllog=(event("run_start", at=-1e308), event("run_stop", at=1e308))))
    assert found.values == {}
    assert found.problems == ["MLLOG line 2: the time from run_start to run_stop is no number"]


def test_values_of_several_hosts_without_steps_stay_in_step():
    line, total = '{"metric": "m", "value": %d}', '{"metric": "total", "value": 5}'
    found = of_hosts({host: document(line % host, line % (host + 10), total, place=f"a/n{host}") for host in (0, 1)})
    assert found.values == {
        "total": [Value(value=5), Value(value=5)],
        "m": [Value(value=0, step=1), Value(value=10, step=2), Value(value=1, step=1), Value(value=11, step=2)],
    }
    assert found.environment.place == "a/n0, a/n1"
    assert found.problems == ()


def test_the_try_that_ended_well_counts_and_hosts_that_are_not_of_it_do_not():
    line = '{"metric": "m", "value": %d}'
    found = of_hosts(
        {0: document(line % 1), 1: document(line % 2, attempt=2, code=1), 2: document(line % 3, attempt=1)}
    )
    assert [each.value for each in found.values["m"]] == [1, 3]
    assert found.problems == ("host 1 stored results of try 1 of attempt 2 last; they do not count",)


def test_hosts_that_differ_are_told():
    found = of_hosts({0: document(driver="535"), 1: document(driver="550", place="z/b")})
    assert found.environment.driver == "535"
    assert found.problems == ("the environments of hosts 0 and 1 differ: driver",)


def test_of_many_problems_the_first_are_named():
    found = of_hosts({0: document(*["x"] * 8)})
    assert len(found.problems) == 6
    assert found.problems[-1] == "3 more problems"


def test_what_a_foreign_object_says_is_no_result():
    store = MemoryStore()
    store.put(keys.results("j", "u", 0), document('{"metric": "m", "value": 1}').to_bytes(), generation=0)
    store.put(keys.results("j", "u", 1), b"not ours", generation=0)
    store.put(keys.results("j", "u", 7), b"of no host of the job", generation=0)
    found = read_values(store, "j", 2, OLDER)
    assert found.values == {"m": [Value(value=1.0)]}
    assert len(found.problems) == 1
    assert "host 1" in found.problems[0]
    assert read_values(store, "j", 2, RunPublicKeys(uid="other")) == JobValues()


def test_results_that_no_host_wrote_are_told_with_what_is_wrong():
    store = MemoryStore()
    name = "job-with-a-long-name-" * 4
    store.put(keys.results(name, "u", 0), b"x" * (limits.RESULTS_DOCUMENT_MAX_BYTES + 1), generation=0)
    forged = document().to_bytes().replace(b'"attempt":1', b'"attempt":-5')
    store.put(keys.results(name, "u", 1), forged, generation=0)
    assert read_values(store, name, 2, OLDER).problems == (
        "the results of host 0 are larger than the 2 MiB that a host writes; someone else wrote them",
        "the results of host 1 are not readable: not a host's results: attempt: Input should be greater than or "
        "equal to 1",
    )


def test_results_that_no_attempt_of_the_job_proves_have_no_value_and_say_why():
    store = MemoryStore()
    known = RunPublicKeys(uid="u", attempts={1: "", 2: KEY.public})
    line = '{"metric": "m", "value": %d}'
    own = keys.results("j", "u", 0)
    store.put(own, result_proofs.to_bytes(document(line % 1, attempt=2), own, KEY), generation=0)
    forged = {
        1: result_proofs.to_bytes(document(line % 9, attempt=2), keys.results("j", "u", 1), THEIRS),
        2: document(line % 9, attempt=2).to_bytes(),
        3: store.get(own).data,  # of another host
        4: document(line % 9).to_bytes(),  # of an attempt that an older version started
        5: document(line % 9, attempt=3).to_bytes(),  # of none
    }
    for host, data in forged.items():
        store.put(keys.results("j", "u", host), data, generation=0)
    found = read_values(store, "j", 6, known)
    assert found.values == {"m": [Value(value=1.0)]}
    assert found.problems == tuple(
        f"the results of host {host} do not prove to be of attempt {attempt} of this job, and do not count; someone "
        "else may have written them; run the benchmark again"
        for host, attempt in ((1, 2), (2, 2), (3, 2), (4, 1), (5, 3))
    )
