"""When the hosts of a job store segments."""

import math
from collections.abc import Iterator

import pytest

from bastion.agent.logs.lines import IDLE_FLUSH_SECONDS
from bastion.agent.logs.pace import ENDED_PERIOD_SECONDS, FIRST_HOSTS, JOB_SEGMENTS_A_SECOND, Pace

NOW = 1_800_000_000.0
SIZES = [1, 2, 15, 16, 17, 26, 27, 40, 64, 100, 512, 1000, 4096]


def paces(hosts: int, *, local: bool = False) -> list[Pace]:
    # Each host's monotonic clock began at another time.
    return [
        Pace.of_host(host, hosts, local=local, now=NOW + host * 0.001, monotonic=1000.0 * host + host * 0.001)
        for host in range(hosts)
    ]


def stored(pace: Pace, host: int, seconds: float, *, behind: bool) -> Iterator[float]:
    """When a host stores that always has something to store, from `NOW` on."""
    last = -math.inf
    while True:
        start = pace.next_slot(ready_at=max(1000.0 * host, last), last_at=last, behind=behind)
        assert start > last
        if start - 1000.0 * host > seconds:
            return
        yield start - 1000.0 * host
        last = start


@pytest.mark.parametrize("behind", [False, True], ids=["calm", "behind"])
@pytest.mark.parametrize("hosts", SIZES)
def test_hosts_that_all_print_store_at_most_so_many_segments_in_any_second(hosts: int, behind: bool):
    for local in (False, True):
        span = 4.0
        instants = sorted(
            instant
            for host, pace in enumerate(paces(hosts, local=local))
            for instant in stored(pace, host, span, behind=behind)
        )
        for place, begun in enumerate(instants):
            within = sum(1 for instant in instants[place : place + 30] if instant < begun + 1.0 - 1e-3)
            assert within <= JOB_SEGMENTS_A_SECOND
        if behind:
            # And nothing is given away.
            assert len(instants) >= min(JOB_SEGMENTS_A_SECOND, hosts * 20) * span * 0.9


@pytest.mark.parametrize("hosts", SIZES)
def test_what_one_of_the_first_hosts_prints_is_stored_within_two_seconds(hosts: int):
    for local in (False, True):
        for host, pace in enumerate(paces(hosts, local=local)[:FIRST_HOSTS]):
            last = 1000.0 * host + 50.0
            for printed in (last, last + 0.001, last + 0.7, last + 100.3):
                waits = pace.next_slot(ready_at=printed, last_at=last, behind=False) - printed
                assert 0 <= waits + IDLE_FLUSH_SECONDS < 1.8


def test_the_hosts_beyond_wait_for_their_turns():
    pace = paces(512)[300]
    assert pace.period_seconds == (512 - 16) / 8
    assert pace.calm_slots == 1


def test_a_lone_host_uses_few_of_its_turns_and_all_of_them_when_it_is_behind():
    (pace,) = paces(1)
    begun = pace.next_slot(ready_at=5.0, last_at=-math.inf, behind=False)
    assert begun == pytest.approx(5.0, abs=0.05)
    assert pace.next_slot(ready_at=begun, last_at=begun, behind=False) - begun == pytest.approx(1.3, abs=1e-5)
    assert pace.next_slot(ready_at=begun, last_at=begun, behind=True) - begun == pytest.approx(0.05, abs=1e-5)


def test_a_host_that_is_late_for_its_turn_does_not_use_two_at_once():
    pace = paces(20)[3]
    slot = pace.next_slot(ready_at=3000.0, last_at=-math.inf, behind=True)
    late = slot + 0.9 * pace.period_seconds
    assert pace.next_slot(ready_at=slot, last_at=late, behind=True) == pytest.approx(
        slot + pace.period_seconds, abs=1e-5
    )


@pytest.mark.parametrize("hosts", SIZES)
def test_after_the_commands_end_nobody_waits_long(hosts: int):
    for host, pace in enumerate(paces(hosts)):
        begun = 1000.0 * host + 17.0
        wait = pace.ended().next_slot(ready_at=begun, last_at=begun, behind=True) - begun
        assert 0 < wait <= ENDED_PERIOD_SECONDS + 1e-3


@pytest.mark.parametrize("hosts", [each for each in SIZES if each <= 56])
def test_up_to_56_hosts_keep_to_the_bound_when_they_end_too(hosts: int):
    for pace in paces(hosts):
        assert pace.ended().period_seconds == pace.period_seconds


def test_the_raw_log_of_a_job_on_the_bastion_is_written_every_ten_seconds():
    pace = Pace.of_raw_log(local=False, now=NOW, monotonic=5.0)
    begun = pace.next_slot(ready_at=5.0, last_at=-math.inf, behind=False)
    assert pace.next_slot(ready_at=begun, last_at=begun, behind=False) - begun == pytest.approx(10.0, abs=1e-5)
    assert pace.next_slot(ready_at=begun, last_at=begun, behind=True) - begun == pytest.approx(1.0, abs=1e-5)
