"""A list and the events after it give the objects there are; what has no meaning is not taken over."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.adapters.kubernetes.watched_objects import UnknownEvent, WatchedObjects


def _pod(name: str, version: int, phase: str = "Running") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "status": {"phase": phase}}


def _cache() -> WatchedObjects[str]:
    return WatchedObjects(lambda pod: str(pod["status"]["phase"]))


def test_events_change_what_the_list_gave() -> None:
    cache = _cache()
    assert cache.replace([("a", "Pending"), ("b", "Running")], "5")
    assert cache.apply({"type": "MODIFIED", "object": _pod("a", 6)})
    assert cache.apply({"type": "DELETED", "object": _pod("b", 7)})
    assert cache.apply({"type": "ADDED", "object": _pod("c", 8, "Failed")})
    assert cache.copy() == {"a": "Running", "c": "Failed"}
    assert cache.resource_version == "8"


def test_what_differs_in_nothing_that_is_kept_is_no_change() -> None:
    cache = _cache()
    cache.replace([("a", "Running")], "5")
    assert not cache.apply({"type": "MODIFIED", "object": _pod("a", 6)})
    assert not cache.apply({"type": "DELETED", "object": _pod("b", 7)})
    assert not cache.replace([("a", "Running")], "9")
    assert cache.resource_version == "9"


def test_a_bookmark_moves_the_version_and_nothing_else() -> None:
    cache = _cache()
    cache.replace([("a", "Running")], "5")
    assert not cache.apply({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "40"}}})
    assert (cache.copy(), cache.resource_version) == ({"a": "Running"}, "40")


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": "ADDED"},
        {"type": "ADDED", "object": None},
        {"type": "ADDED", "object": {"metadata": {}}},
        {"type": "NEW", "object": _pod("a", 6)},
        {"type": "MODIFIED", "object": {"metadata": {"name": "a", "resourceVersion": "6"}}},
    ],
)
def test_an_event_that_cannot_be_read_leaves_everything_as_it_was(event: dict[str, Any]) -> None:
    cache = _cache()
    cache.replace([("a", "Pending")], "5")
    with pytest.raises(UnknownEvent):
        cache.apply(event)
    assert (cache.copy(), cache.resource_version) == ({"a": "Pending"}, "5")


NAMES = st.sampled_from("abc")
PHASES = st.sampled_from(["Pending", "Running", "Failed"])


@given(st.lists(st.tuples(NAMES, st.one_of(PHASES, st.none())), max_size=30), st.integers(0, 30), st.integers(0, 30))
def test_a_relist_after_missed_events_gives_what_every_event_would_have(
    history: list[tuple[str, str | None]], first: int, missed: int
) -> None:
    cache, world = _cache(), dict[str, str]()
    for version, (name, phase) in enumerate(history, start=1):
        existed = name in world
        if phase is None:
            world.pop(name, None)
        else:
            world[name] = phase
        if first <= version < first + missed:
            continue
        if version == first + missed:
            cache.replace(list(world.items()), str(version))
        elif phase is not None:
            cache.apply({"type": "MODIFIED" if existed else "ADDED", "object": _pod(name, version, phase)})
        elif existed:
            cache.apply({"type": "DELETED", "object": _pod(name, version)})
    if first <= len(history) < first + missed:
        cache.replace(list(world.items()), "99")
    assert cache.copy() == world
