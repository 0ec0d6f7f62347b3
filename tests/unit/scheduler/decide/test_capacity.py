"""The pool's tiers by themselves: what fits where, and what is taken of types and tiers that are gone."""

from __future__ import annotations

import pytest

from scheduler.decide.capacity import Capacity, amounts_of

V4 = "v4"


def test_a_type_that_the_quota_file_no_longer_has_is_taken_and_never_free() -> None:
    pool = Capacity([{V4: 8}])
    pool.take((("v9", 4),), 0)
    assert (pool.free("v9"), pool.free("v8")) == (-4, 0)
    assert pool.lacking((("v8", 1), ("v9", 1))) == {"v8": 1, "v9": 5}
    pool.give_back((("v9", 4),), 0)
    assert pool.free("v9") == 0


@pytest.mark.parametrize(("recorded", "label"), [(None, 0), (-1, 0), (0, 0), (1, 1), (2, 1)])
def test_a_recorded_tier_means_one_that_the_pool_has(recorded: int | None, label: int) -> None:
    assert Capacity([{V4: 8}, {V4: 8}]).label(recorded) == label


def test_a_job_is_charged_from_its_tier_upwards() -> None:
    pool, empty = Capacity([{V4: 8}, {V4: 4}, {V4: 2}]), Capacity([{V4: 8}, {V4: 4}, {V4: 2}])
    pool.take(((V4, 8),), 1)
    # Of the first tier 4 must stay: the two of them have 12.
    assert [pool.available(V4, tier) for tier in range(3)] == [4, 4, 6]
    assert [pool.best_tier(((V4, amount),), empty) for amount in (4, 5, 6, 7)] == [0, 2, 2, 2]
    assert (pool.free(V4), pool.fits(((V4, 6),)), pool.fits(((V4, 7),))) == (6, True, False)
    copy = pool.copy()
    copy.take(((V4, 6),), 2)
    assert (pool.free(V4), copy.free(V4)) == (6, 0)


def test_amounts_of_nothing_are_left_out_and_the_rest_is_sorted() -> None:
    assert amounts_of({V4: 0}) == amounts_of({}) == amounts_of({V4: 0, "v5e": -1}) == ()
    assert amounts_of({"v5e": 1, V4: 2, "v3": 0}) == ((V4, 2), ("v5e", 1))
