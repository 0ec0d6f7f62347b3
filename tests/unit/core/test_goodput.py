"""Where the time of a job went."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.core.goodput import Goodput, Run, account


def test_a_job_that_waits_only_waits():
    assert account(100, [], 160) == Goodput(waiting=60)
    assert account(100, [], 160).fraction is None


def test_a_job_that_was_preempted_twice():
    runs = [
        # 30 s without machines, 10 s to start, 100 s of work of which 80 are saved, 5 s to stop.
        Run(held_at=30, running_since=40, stopped_at=140, freed_at=145, saved_at=120, first_step=0, last_step=50),
        # 15 s without machines, 10 s to start, 50 s of work, nothing saved, 5 s to stop.
        Run(held_at=160, running_since=170, stopped_at=220, freed_at=225, first_step=40, last_step=60),
        Run(held_at=225, running_since=235, stopped_at=335, freed_at=337, succeeded=True, first_step=41, last_step=99),
    ]
    found = account(0, runs, 337)
    assert found == Goodput(waiting=45, restarting=42, productive=180, lost=70, lost_steps=10 + 19)
    assert found.total == 337
    assert found.fraction == pytest.approx(180 / 292)


def test_work_in_progress_is_productive_until_it_is_lost():
    running = Run(held_at=10, running_since=20, saved_at=40)
    assert account(0, [running], 100) == Goodput(waiting=10, restarting=10, productive=80)


def test_what_is_saved_after_the_order_to_stop_is_not_lost():
    saved = Run(held_at=0, running_since=10, stopped_at=50, freed_at=60, saved_at=55)
    assert account(0, [saved], 60) == Goodput(restarting=20, productive=40)


def test_an_attempt_that_never_ran_is_no_work():
    never = Run(held_at=5, stopped_at=20, freed_at=30)
    assert account(0, [never], 30) == Goodput(waiting=5, restarting=25)


def test_steps_count_only_where_they_are_known():
    unknown, known = (
        Run(held_at=0, running_since=0, stopped_at=9, freed_at=9),
        Run(held_at=9, first_step=3, last_step=8),
    )
    assert account(0, [unknown], 9).lost_steps is None
    assert account(0, [unknown, known], 20).lost_steps == 0


_INSTANT = st.floats(min_value=-100, max_value=1000)
_RUN = st.builds(
    Run,
    held_at=_INSTANT,
    running_since=st.none() | _INSTANT,
    stopped_at=st.none() | _INSTANT,
    freed_at=st.none() | _INSTANT,
    saved_at=st.none() | _INSTANT,
    succeeded=st.booleans(),
    first_step=st.none() | st.integers(0, 100),
    last_step=st.none() | st.integers(0, 100),
)


@given(st.lists(_RUN, max_size=5), st.floats(min_value=0, max_value=1000))
def test_the_parts_are_never_negative_and_add_up_to_the_whole(runs: list[Run], until: float):
    found = account(0.0, runs, until)
    assert min(found.waiting, found.restarting, found.productive, found.lost) >= 0
    assert found.total == pytest.approx(until, abs=1e-6)
    assert found.lost_steps is None or found.lost_steps >= 0
