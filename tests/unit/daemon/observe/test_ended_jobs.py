"""How the daemon learns how awaited jobs ended that are not live."""

from __future__ import annotations

import json

import pytest

from bastion.adapters.inbox_proof import BucketProof
from bastion.core.bucket import keys
from bastion.core.model.awaiting import EndedJob
from bastion.core.model.job_limits import Dependency, On
from bastion.daemon.observe.ended_jobs import EndedJobs
from bastion.daemon.observe.inbox import Inbox
from bastion.daemon.thread_pool import ThreadPool
from bastion.testing.counting_store import CountingStore
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.memory_store import MemoryStore

ROOT = "memory/x-bastion"
UID, OTHER = "aaaaaaaaaa", "bbbbbbbbbb"
WANTED = {UID: Dependency(job="job", uid=UID, on=On.SUCCEEDED)}


class Bench:
    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.faulty = FaultyStore(self.memory)
        self.counting = CountingStore(self.faulty)
        self.jobs = EndedJobs(self.counting, root=ROOT, inbox=Inbox(BucketProof()))
        self.threads = ThreadPool(1)

    def write(self, key: str, uid: str, **result: object) -> None:
        document = {"name": "job", "result": {"uid": uid, **result}}
        self.memory.put(key, json.dumps(document).encode(), generation=0)


@pytest.mark.parametrize("key", [keys.complete("job"), keys.former_result("job", UID)])
def test_a_result_is_read_once_wherever_it_is(key: str) -> None:
    bench = Bench()
    bench.write(key, UID, outcome="failed", exit_code=3)
    if key != keys.complete("job"):
        bench.write(keys.complete("job"), OTHER, outcome="succeeded", exit_code=0)
    assert bench.jobs.look_up(WANTED, bench.threads)
    assert bench.jobs.known == {UID: EndedJob(outcome="failed", exit_code=3)}
    bench.counting.reset()
    assert not bench.jobs.look_up(WANTED, bench.threads)
    assert bench.counting.requests == 0
    bench.jobs.look_up({}, bench.threads)
    assert bench.jobs.known == {}


def test_where_the_bucket_does_not_answer_nothing_is_known_and_the_next_tick_asks_again() -> None:
    bench = Bench()
    bench.write(keys.complete("job"), UID, outcome="succeeded", exit_code=0)
    bench.faulty.fail_next("get")
    assert not bench.jobs.look_up(WANTED, bench.threads)
    (problem,) = bench.jobs.problems
    assert problem.startswith("the result of job, which others await, could not be read: ")
    assert bench.jobs.look_up(WANTED, bench.threads)
    assert (bench.jobs.problems, bench.jobs.known[UID].outcome) == ([], "succeeded")


def test_without_a_result_a_job_is_unknown_unless_its_spec_is_there() -> None:
    bench = Bench()
    meta = bench.memory.put(keys.active("job"), b"{}", generation=0)
    uid = keys.job_uid(ROOT, "job", meta.generation)
    wanted = {**WANTED, uid: Dependency(job="job", uid=uid, on=On.ENDED)}
    assert bench.jobs.look_up(wanted, bench.threads)
    assert bench.jobs.known == {UID: EndedJob(outcome="")}
    bench.jobs.start_anew()
    assert bench.jobs.known == {}


@pytest.mark.parametrize("result", [{}, {"outcome": "", "exit_code": 0}, {"outcome": "failed"}, {"exit_code": 1}])
def test_a_result_of_another_program_has_an_unknown_outcome(result: dict[str, object]) -> None:
    bench = Bench()
    bench.write(keys.complete("job"), UID, **result)
    bench.jobs.look_up(WANTED, bench.threads)
    assert bench.jobs.known == {UID: EndedJob(outcome="unknown")}
