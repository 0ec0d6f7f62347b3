"""How long a host that shuts down gives its command, and what is left for the rest."""

from random import Random

import pytest

from bastion.agent.bucket_link import BucketLink
from bastion.agent.identity import HostIdentity
from bastion.agent.stop_reasons import SHUTDOWN_GRACE_SECONDS, StopReasons
from bastion.core.bucket.protocol import AgentArguments
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore


def reasons(clock: ManualClock, seconds: float) -> StopReasons:
    arguments = AgentArguments(
        root="/b/t-bastion",
        bastion="t-bastion",
        job="j",
        run="abcdefghij-1",
        run_key="ab" * 32,
        shutdown_seconds=seconds,
    )
    identity = HostIdentity(arguments=arguments, worker=0)
    link = BucketLink(MemoryStore(), identity, clock=clock, rng=Random(1), on_change=lambda: None)
    return StopReasons(identity, link, None, clock=clock)


def seconds_left(host: StopReasons, clock: ManualClock) -> float:
    stop = host.of_host()
    assert stop is not None
    return stop.deadline - clock.monotonic()


def test_the_time_of_a_pod_begins_with_its_first_signal():
    clock = ManualClock()
    host = reasons(clock, 50.0)
    clock.advance(1000.0)
    assert (host.of_host(), host.spare_seconds, host.has_shutdown_limit) == (None, 0.0, False)
    host.begin_shutdown()
    clock.advance(20.0)
    host.begin_shutdown()
    assert (seconds_left(host, clock), host.spare_seconds, host.has_shutdown_limit) == (30.0, 30.0, True)
    clock.advance(40.0)
    assert (seconds_left(host, clock), host.spare_seconds) == (-10.0, 0.0)


@pytest.mark.parametrize("late", [0.0, 20.0])
def test_a_vm_gives_the_same_few_seconds_whenever_it_looks(late: float):
    clock = ManualClock()
    host = reasons(clock, 0.0)
    host.begin_shutdown()
    clock.advance(late)
    left = seconds_left(host, clock)
    assert (left, host.spare_seconds, host.has_shutdown_limit) == (SHUTDOWN_GRACE_SECONDS, 0.0, False)
