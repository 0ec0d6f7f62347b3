"""Small instances of every kind reach a fixed point, without a job being stopped again and again.

A sample of them in every run; `make exhaustive` tries all that `instances.parts` names.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from tests.exhaustive.fixed_point import play
from tests.exhaustive.instances import Gap, Instance, Part, blocks, is_canonical, parts, sequences

EVERYTHING = os.environ.get("BASTION_EXHAUSTIVE") == "all"
SAMPLE = 900


def assert_settles(instance: Instance) -> None:
    """Nothing moves in the end, every pass on the way was good, and nobody was stopped too often.

    The bound: no job is stopped twice for the same other job, so none more often than there are others: four times,
    below the seven (`EVICTIONS_MAX`) from which on a job is the last to be chosen. Why: whoever had another job stopped
    runs, and claims nothing while it does. It would have to be stopped first and then to claim again. A project loses
    jobs only while it has borrowed, and then its share gives it no right to claim at once what it lost; a gang is
    recalled again after an owner stopped it, but then the owner holds what the gang would need, and for good.

    This is an argument and no proof; the instances are its test. It is about jobs that are endless or end before
    anybody is recalled: where owners come and go, a gang is recalled after each visit, and stops the same borrowers
    again (`tests/golden/gang_gives_way_to_an_owner.txt`). The most that was ever found here is two.
    """
    try:
        world = play(instance)
        assert not instance.lengths or not world.jobs, f"never ran: {sorted(world.jobs)}"
        assert max(Counter(world.evicted_for).values(), default=0) <= 1, world.evicted_for
        assert max(world.evictions.values(), default=0) < max(len(instance.wishes), 2), world.evictions
    except AssertionError as error:
        raise AssertionError(f"{instance}: {error}") from error


def sample(seed: int) -> list[Instance]:
    """Instances of all parts, five jobs in any order included."""
    rng = random.Random(seed)
    found: list[Instance] = []
    everything = parts()
    while len(found) < SAMPLE:
        part = everything[len(found) % len(everything)]
        count = rng.randint(3, 5)
        wishes = tuple((rng.choice("abc"), rng.choice((1, 2, 4, 8))) for _ in range(count))
        if is_canonical(part.shares, [project for project, _ in wishes]):
            lengths = tuple(rng.choice((1, 2, 4, 7)) for _ in wishes) if part.finite else ()
            found.append(Instance(part.shares, part.stopping, part.gap, wishes, lengths))
    return found


@pytest.mark.parametrize("seed", range(2))
def test_a_sample_of_small_instances_settles(seed: int) -> None:
    for instance in sample(seed):
        assert_settles(instance)


@pytest.mark.parametrize("part", parts() if EVERYTHING else [], ids=str)
def test_every_small_instance_settles(part: Part) -> None:
    for instance in part.instances():
        assert_settles(instance)


def test_symmetric_instances_are_tried_once() -> None:
    assert len(list(sequences((4, 4, 0), 1))) == 8  # a or c, four sizes
    assert len(list(sequences((8, 0, 0), 2))) == 80  # of 144
    assert is_canonical((4, 2, 2), ["b", "a", "c"])
    assert not is_canonical((4, 2, 2), ["c", "a", "b"])
    five = list(blocks((4, 2, 2), 5))
    assert len(five) == len(set(five))
    assert {len(set(wishes)) for wishes in five} == {1, 2, 3, 4, 5}
    assert Gap.REST in {part.gap for part in parts()}
