"""A run is submitted once, whoever is killed, however often it is tried, and however many try at once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from bastion.benchmark import documents, layout, measurements
from bastion.benchmark.file import Benchmark
from bastion.benchmark.members import lines_in, trial_specs
from bastion.benchmark.submit import Submission
from bastion.client import Client
from bastion.core.bucket import keys
from bastion.core.errors import Refused, StoreUnavailable
from bastion.core.model import cancel_request, job_spec
from bastion.ports import ObjectStore
from bastion.testing.cluster import BASTION, Cluster
from bastion.testing.slow_bucket import SlowBucket, SlowWay
from tests.support.bench_files import PLACE, SimulatedRoot, benchmark


class Killed(BaseException):
    """`kill -9` of a client."""


def client_of(cluster: Cluster, store: ObjectStore | None = None) -> Client:
    return Client(store or cluster.store, SimulatedRoot(), cluster.clock)


def way_of(cluster: Cluster, moment: Callable[[str, str], None]) -> SlowWay:
    way = SlowBucket(cluster.store, cluster.clock).way()
    way.moment = moment
    return way


def submit(
    cluster: Cluster, file: Benchmark, store: ObjectStore | None = None, bundle: str | None = None
) -> Submission:
    submission = Submission(client_of(cluster, store), file, PLACE, bundle)
    submission.submit()
    return submission


def specs(cluster: Cluster) -> dict[str, job_spec.JobSpec]:
    return {
        key.removeprefix(keys.JOBS_ACTIVE): job_spec.parse(
            cluster.store.get(key).data, name=key.removeprefix(keys.JOBS_ACTIVE), bastion=BASTION
        )
        for key in cluster.listed(keys.JOBS_ACTIVE)
    }


def test_the_finisher_and_all_members_are_written_with_what_they_wait_for() -> None:
    cluster = Cluster()
    submission = submit(cluster, benchmark(("repeats = 3", "repeats = 3\nparallel = 2")))
    matrix = submission.matrix
    found = specs(cluster)
    submitted = documents.read_submitted(cluster.store, matrix.name, matrix.run)
    assert submitted is not None
    assert (
        set(found)
        == set(submitted.jobs)
        == {
            matrix.finisher,
            *(each.job for cell in matrix.cells for each in cell.repeats),
        }
    )
    finisher = found.pop(matrix.finisher)
    assert finisher.runner is None
    assert finisher.limits.cleanup_after_group_seconds == 21600
    assert finisher.limits.cleanup_tries == 3
    assert finisher.command.startswith("exec python3 -I -m bastion.cli.main benchmark begin matmul/")
    assert len({finisher.limits.group, *(spec.limits.group for spec in found.values())}) == 1
    waits = [spec.limits.after for spec in found.values()]
    assert all(after[0].uid == submitted.jobs[matrix.finisher] for after in waits)
    chained = [after[1].uid for after in waits if len(after) == 2]
    assert len(chained) == len(set(chained)) == len(found) - 2, "two chains"
    assert all(spec.limits.max_run_seconds == 1200 for spec in found.values())
    assert (
        cluster.store.get(layout.bench_file(matrix.name, matrix.run)).data
        == benchmark(("repeats = 3", "repeats = 3\nparallel = 2")).data
    )


def test_the_finisher_runs_the_lines_of_its_own_spec() -> None:
    cluster = Cluster()
    submission = submit(cluster, benchmark(('up = ["make up"]', """up = ["echo '$x'", 'b"']""")))
    variables = specs(cluster)[submission.matrix.finisher].env_vars
    assert lines_in(variables, "up") == ["echo '$x'", 'b"']
    assert lines_in(variables, "down") == ["make down"]
    assert lines_in({}, "down") is None, "a user's own call"


def test_lines_that_do_not_fit_into_a_spec_are_refused_before_anything_is_written() -> None:
    cluster = Cluster()
    file = benchmark(('up = ["make up"]', f'up = ["{"x" * 70_000}"]'))
    with pytest.raises(Refused, match=r"up and down: .*the maximum is 65536; put their lines into a script"):
        list(trial_specs(file, PLACE, now=0.0))
    assert cluster.listed("benchmarks/") == []


def test_on_a_cloud_bucket_members_that_do_not_wait_for_each_other_are_submitted_together() -> None:
    cluster, file = Cluster(), benchmark(("repeats = 3", "repeats = 3\nparallel = 4"))
    others, members = threading.Barrier(4), itertools.count()

    def moment(method: str, key: str) -> None:
        name = key.removeprefix(keys.JOBS_ACTIVE)
        if method == "put" and name != key and not name.endswith("-finish") and next(members) < 4:
            others.wait(timeout=20)

    client = Client(way_of(cluster, moment), SimulatedRoot(local=False), cluster.clock)
    Submission(client, file, PLACE, None).submit()
    assert not others.broken


def test_a_client_killed_at_any_request_leaves_what_a_second_one_goes_on_with() -> None:
    file = benchmark(("repeats = 3", "repeats = 1"))
    for number in itertools.count():
        cluster = Cluster()
        calls = itertools.count()

        def moment(_method: str, _key: str, calls: itertools.count[int] = calls, number: int = number) -> None:
            if next(calls) == number:
                raise Killed

        try:
            submit(cluster, file, way_of(cluster, moment))
            break
        except Killed:
            pass
        cluster.clock.advance(60)
        second = submit(cluster, file)
        submitted = documents.read_submitted(cluster.store, "matmul", second.matrix.run)
        assert submitted is not None
        assert set(specs(cluster)) == set(submitted.jobs), f"killed at request {number}"
        assert len(list(measurements.runs(cluster.store, "matmul"))) == 1, f"killed at request {number}"
        uids = {name: client_of(cluster).require(name).uid for name in submitted.jobs}
        assert uids == submitted.jobs
    assert number > 20


def test_two_clients_at_once_submit_one_run() -> None:
    """The second one does all of its work between two requests of the first, at every one of them."""
    file = benchmark(("repeats = 3", "repeats = 1"))
    for number in itertools.count():
        cluster = Cluster()
        calls = itertools.count()

        def moment(
            _method: str,
            _key: str,
            calls: itertools.count[int] = calls,
            number: int = number,
            cluster: Cluster = cluster,
        ) -> None:
            if next(calls) == number:
                cluster.clock.advance(2)
                submit(cluster, file)

        first = submit(cluster, file, way_of(cluster, moment))
        second = submit(cluster, file)
        assert second.matrix == first.matrix, number
        submitted = documents.read_submitted(cluster.store, "matmul", first.matrix.run)
        assert submitted is not None
        assert set(specs(cluster)) == set(submitted.jobs), number
        assert cluster.listed(keys.JOBS_USER_STATES) == [], number
        if next(calls) <= number:
            break


def test_another_file_and_other_code_are_new_runs() -> None:
    cluster = Cluster()
    first = submit(cluster, benchmark())
    assert submit(cluster, benchmark()).matrix.run == first.matrix.run
    edited = submit(cluster, benchmark(("1024, 4096", "1024, 4096, 8192")))
    other_code = submit(cluster, benchmark(), bundle="ab" * 32)
    runs = {first.matrix.run, edited.matrix.run, other_code.matrix.run}
    assert len(runs) == 3
    assert len(specs(cluster)) == (9 + 1) + (15 + 1) + (9 + 1)


def test_after_its_end_the_same_file_is_a_new_run() -> None:
    cluster = Cluster()
    first = submit(cluster, benchmark())
    for name in specs(cluster):
        cluster.cancel(name)
    cluster.run_until(lambda: not cluster.listed(keys.JOBS_STATES) and not cluster.listed(keys.JOBS_ACTIVE))
    second = submit(cluster, benchmark())
    assert not second.continued
    assert second.matrix.run != first.matrix.run
    assert set(specs(cluster)).isdisjoint(each.job for cell in first.matrix.cells for each in cell.repeats)


def test_a_store_that_does_not_answer_is_told_and_tried_again_by_the_next_call() -> None:
    cluster = Cluster()
    way = SlowBucket(cluster.store, cluster.clock).way()
    way.hold_next("put", keys.JOBS_ACTIVE, 30.0)
    with pytest.raises(StoreUnavailable):
        submit(cluster, benchmark(), way)
    submission = submit(cluster, benchmark())
    assert submission.continued
    assert len(specs(cluster)) == 10


def test_a_member_that_the_bastion_refuses_is_told() -> None:
    cluster = Cluster()
    first = Submission(client_of(cluster), benchmark(), PLACE, None)
    job = first.matrix.cells[0].repeats[0].job
    cluster.put_spec(job, b"{}")
    for _ in range(5):
        cluster.step()
    with pytest.raises(Refused, match=f"the bastion refuses the job {job}: .*bastion benchmark cancel"):
        submit(cluster, benchmark())


@pytest.mark.parametrize("data", [b"<<<", b'{"format": 1, "run": "../x"}'])
def test_an_unreadable_pointer_to_the_newest_run_is_replaced(data: bytes) -> None:
    cluster = Cluster()
    first = submit(cluster, benchmark())
    (key,) = cluster.listed("benchmarks/matmul/newest/")
    cluster.store.put(key, data, generation=cluster.store.get(key).meta.generation)
    assert submit(cluster, benchmark()).matrix.run != first.matrix.run
    assert layout.RUN.fullmatch(layout.read(layout.Newest, cluster.store.get(key).data, key).run)


@pytest.mark.parametrize("data", [None, b"{}"])
def test_a_run_whose_matrix_is_gone_or_forged_is_followed_by_another(data: bytes | None) -> None:
    cluster = Cluster()
    first = submit(cluster, benchmark()).matrix
    key = layout.matrix(first.name, first.run)
    if data is None:
        cluster.store.delete(key, generation=cluster.store.get(key).meta.generation)
    else:
        cluster.store.put(key, data, generation=cluster.store.get(key).meta.generation)
    second = submit(cluster, benchmark())
    assert not second.continued
    assert second.matrix.run != first.run


def test_a_run_that_was_cancelled_is_not_gone_on_with() -> None:
    cluster = Cluster()
    first = submit(cluster, benchmark()).matrix
    uid = client_of(cluster).require(first.finisher).uid
    request = cancel_request.to_bytes(by="ann", at="2026-01-02T03:04:05Z", uid=uid)
    cluster.store.put(keys.user_state(first.finisher), request, generation=0)
    with pytest.raises(Refused, match=r"was cancelled and is being torn down; run the file again when it has ended"):
        submit(cluster, benchmark())
