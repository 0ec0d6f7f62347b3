"""The list-watch against a scripted API: what follows a cut, a 410, an error, silence; with a clock that tests move."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from bastion.adapters.kubernetes.api import Listing
from bastion.adapters.kubernetes.api_errors import Expired, NoAnswer, Overloaded
from bastion.adapters.kubernetes.list_watch import ListWatch, Pace
from bastion.core.errors import CredentialsRefused, MissingPermission, ProvisionerUnavailable
from bastion.testing.manual_clock import ManualClock

T = TypeVar("T")
PODS = "/api/v1/namespaces/training/pods"
LONG_SECONDS = 300.0
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}


def _pod(name: str, version: int, phase: str = "Running") -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}, "status": {"phase": phase}}


def _event(kind: str, name: str, version: int, phase: str = "Running") -> dict[str, Any]:
    return {"type": kind, "object": _pod(name, version, phase)}


class _Watch:
    def __init__(self, clock: ManualClock, steps: list[Any]) -> None:
        self._clock = clock
        self._steps = steps
        self.closed = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for step in self._steps:
            match step:
                case float():
                    self._clock.advance(step)
                case Exception():
                    raise step
                case _:
                    yield step

    def close(self) -> None:
        self.closed = True


@dataclass
class _Source:
    """Answers lists and watches with what a test wrote down.

    Attributes:
        lists: Pods with a version, or an error; the last one is repeated.
        watches: Steps of each watch (seconds that pass, events, an error), or an error instead of one.
        requests: What was asked, in order.
    """

    clock: ManualClock
    lists: list[Any]
    watches: list[Any]
    cluster: str = "west"
    requests: list[str] = field(default_factory=list)

    def list_each(self, path: str, reduce: Callable[[dict[str, Any]], T], *, label_selector: str = "") -> Listing[T]:
        assert (path, label_selector) == (PODS, "bastion-managed=x")
        self.requests.append("list")
        found = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(found, Exception):
            raise found
        pods, version = found
        return Listing(items=[reduce(pod) for pod in pods], resource_version=version)

    def watch(
        self,
        path: str,
        *,
        resource_version: str,
        label_selector: str = "",
        timeout_seconds: float = 0.0,
        read_seconds: float = 0.0,
    ) -> _Watch:
        assert (path, label_selector) == (PODS, "bastion-managed=x")
        assert 270 <= timeout_seconds <= 330
        self.requests.append(f"watch {resource_version}")
        steps = self.watches.pop(0)
        if isinstance(steps, Exception):
            raise steps
        return _Watch(self.clock, steps)


def _phase(pod: Mapping[str, Any]) -> str:
    return str(pod["status"]["phase"])


def _list_watch(source: _Source, changes: list[int] | None = None, pace: Pace | None = None) -> ListWatch[str]:
    return ListWatch(
        source,
        PODS,
        label_selector="bastion-managed=x",
        shrink=_phase,
        clock=source.clock,
        on_change=lambda: changes.append(1) if changes is not None else None,
        pace=pace,
        chance=random.Random(5),
    )


def test_a_watch_that_ends_goes_on_from_its_last_version_without_a_list(clock: ManualClock) -> None:
    source = _Source(
        clock,
        [([_pod("a", 3)], "7")],
        [
            [LONG_SECONDS, _event("MODIFIED", "a", 9, "Failed")],
            [LONG_SECONDS, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "50"}}}],
            [LONG_SECONDS, _event("DELETED", "a", 60)],
        ],
    )
    cached = _list_watch(source)
    assert [cached.turn(), cached.turn()] == [0.0, 0.0]
    assert cached.snapshot() == {"a": "Failed"}
    assert cached.turn() == 0.0
    assert cached.snapshot() == {}
    assert source.requests == ["list", "watch 7", "watch 9", "watch 50"]


def test_a_cut_watch_goes_on_from_its_last_version_too(clock: ManualClock) -> None:
    cut = ProvisionerUnavailable("connection reset")
    source = _Source(clock, [([], "7")], [[LONG_SECONDS, _event("ADDED", "a", 9), cut], [LONG_SECONDS]])
    cached = _list_watch(source)
    assert cached.turn() <= 0.5
    cached.turn()
    assert source.requests == ["list", "watch 7", "watch 9"]


@pytest.mark.parametrize("gone", [[LONG_SECONDS, GONE], Expired("too old")])
def test_after_410_it_lists_once_and_sees_what_was_deleted_meanwhile(clock: ManualClock, gone: Any) -> None:
    changes: list[int] = []
    source = _Source(clock, [([_pod("a", 3), _pod("b", 4)], "7"), ([_pod("b", 4)], "90")], [gone, [60.0], [60.0]])
    cached = _list_watch(source, changes)
    for _ in range(3):
        cached.turn()
    assert cached.snapshot() == {"b": "Running"}
    assert source.requests == ["list", "watch 7", "list", "watch 90", "watch 90"]
    assert len(changes) == 2


@pytest.mark.parametrize(
    "steps",
    [
        [{"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd"}}],
        [{"type": "ERROR"}],
        [{"type": "SURPRISE", "object": _pod("a", 9)}],
        [{"type": "ADDED", "object": {"metadata": {"name": "a", "resourceVersion": "9"}}}],
    ],
)
def test_what_it_cannot_read_makes_it_list_again(clock: ManualClock, steps: list[Any]) -> None:
    source = _Source(clock, [([], "7")], [[LONG_SECONDS, *steps], [LONG_SECONDS]])
    cached = _list_watch(source)
    cached.turn()
    cached.turn()
    assert source.requests == ["list", "watch 7", "list", "watch 7"]


def test_it_lists_again_after_half_an_hour(clock: ManualClock) -> None:
    source = _Source(clock, [([], "7")], [[LONG_SECONDS]] * 8)
    cached = _list_watch(source)
    for _ in range(8):
        cached.turn()
    assert source.requests.count("list") == 2
    assert source.requests.index("list", 1) in (6, 7, 8)


def test_a_snapshot_is_refused_before_the_first_list_and_says_why(clock: ManualClock) -> None:
    source = _Source(clock, [ProvisionerUnavailable("connection refused"), ([], "7")], [[LONG_SECONDS]])
    cached = _list_watch(source)
    with pytest.raises(ProvisionerUnavailable, match="not listed yet"):
        cached.snapshot()
    cached.turn()
    with pytest.raises(ProvisionerUnavailable, match=r"connection refused \(not listed yet\)"):
        cached.snapshot()
    assert not cached.wait_synced(0)


def test_a_snapshot_is_refused_once_nothing_confirms_it(clock: ManualClock) -> None:
    silent = ProvisionerUnavailable("the API server fell silent")
    source = _Source(clock, [([_pod("a", 3)], "7")], [[75.0, silent], silent, silent, [1.0]])
    cached = _list_watch(source)
    cached.turn()
    assert cached.snapshot() == {"a": "Running"}
    clock.advance(14.9)
    cached.turn()
    assert cached.snapshot() == {"a": "Running"}
    clock.advance(0.2)
    with pytest.raises(ProvisionerUnavailable, match=r"fell silent \(not confirmed for 90 s\)"):
        cached.snapshot()
    cached.turn()
    with pytest.raises(ProvisionerUnavailable):
        cached.snapshot()
    cached.turn()
    assert cached.snapshot() == {"a": "Running"}


def test_an_event_or_a_bookmark_confirms_it(clock: ManualClock) -> None:
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "50"}}}
    source = _Source(clock, [([], "7")], [[80.0, bookmark, 80.0, _event("ADDED", "a", 60), 80.0]])
    cached = _list_watch(source)
    cached.turn()
    assert cached.snapshot() == {"a": "Running"}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MissingPermission("no", permission="list pods in namespace training"), MissingPermission),
        (CredentialsRefused("expired"), CredentialsRefused),
    ],
)
def test_a_missing_permission_is_still_one_in_the_snapshot(
    clock: ManualClock, error: ProvisionerUnavailable, kind: type[ProvisionerUnavailable]
) -> None:
    cached = _list_watch(_Source(clock, [error], []))
    cached.turn()
    with pytest.raises(kind) as raised:
        cached.snapshot()
    if isinstance(raised.value, MissingPermission):
        assert raised.value.permission == "list pods in namespace training"


def test_failures_are_spaced_ever_wider_at_random_up_to_a_limit(clock: ManualClock) -> None:
    source = _Source(clock, [ProvisionerUnavailable("no")], [])
    cached = _list_watch(source)
    pauses = [cached.turn() for _ in range(300)]
    assert all(pause <= min(30.0, 0.5 * 2**count) for count, pause in enumerate(pauses))
    late = pauses[10:]
    assert min(late) < 3
    assert max(late) > 27
    assert 13 < sum(late) / len(late) < 17


def test_an_api_server_that_is_down_is_found_again_within_seconds(clock: ManualClock) -> None:
    cached = _list_watch(_Source(clock, [NoAnswer("refused")], []))
    pauses = [cached.turn() for _ in range(100)]
    assert max(pauses) <= 5.0
    assert sum(pauses[10:]) / 90 > 2


def test_the_pauses_begin_anew_after_a_watch_that_lasted(clock: ManualClock) -> None:
    cut = ProvisionerUnavailable("cut")
    source = _Source(clock, [([], "7")], [cut] * 10 + [[LONG_SECONDS, cut]])
    cached = _list_watch(source)
    assert max(cached.turn() for _ in range(10)) > 3
    assert cached.turn() <= 0.5


def test_a_server_that_ends_each_watch_at_once_is_not_asked_in_a_loop(clock: ManualClock) -> None:
    source = _Source(clock, [([], "7")], [[]] * 50)
    cached = _list_watch(source)
    assert sum(cached.turn() for _ in range(50)) > 200
    assert source.requests.count("list") == 1


def test_410_over_and_over_is_not_answered_by_lists_in_a_loop(clock: ManualClock) -> None:
    cached = _list_watch(_Source(clock, [([], "7")], [[GONE]] * 50))
    assert sum(cached.turn() for _ in range(50)) > 200


def test_a_pause_that_the_server_names_is_kept(clock: ManualClock) -> None:
    source = _Source(clock, [Overloaded("slow down", retry_after_seconds=20.0)], [])
    assert _list_watch(source).turn() == 20.0
    source = _Source(clock, [Overloaded("slow down", retry_after_seconds=9e9)], [])
    assert _list_watch(source).turn() == 60.0


def test_changes_are_announced_only_where_something_changed(clock: ManualClock) -> None:
    changes: list[int] = []
    events = [_event("MODIFIED", "a", 9), _event("MODIFIED", "a", 10, "Failed"), _event("DELETED", "z", 11)]
    source = _Source(clock, [([_pod("a", 3)], "7")], [[LONG_SECONDS, *events]])
    cached = _list_watch(source, changes)
    cached.turn()
    # The first list, and the pod that failed.
    assert len(changes) == 2


def test_an_empty_first_list_is_announced_too(clock: ManualClock) -> None:
    changes: list[int] = []
    _list_watch(_Source(clock, [([], "7")], [[LONG_SECONDS]]), changes).turn()
    assert changes == [1]


def test_an_object_that_cannot_be_shrunk_ends_neither_thread_nor_process(clock: ManualClock) -> None:
    source = _Source(clock, [([{"metadata": {"name": "a"}}], "7"), ([], "8")], [[60.0]])
    cached = _list_watch(source)
    assert cached.turn() >= 0
    with pytest.raises(ProvisionerUnavailable, match="KeyError"):
        cached.snapshot()
    cached.turn()
    assert cached.snapshot() == {}


def test_a_closed_cache_answers_no_more(clock: ManualClock) -> None:
    cached = _list_watch(_Source(clock, [([], "7")], [[LONG_SECONDS]]))
    cached.turn()
    cached.close()
    with pytest.raises(ProvisionerUnavailable, match="closed"):
        cached.snapshot()
