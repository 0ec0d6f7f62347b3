"""Which Workload counts while the cache of Workloads is behind the pods."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from bastion.adapters.kubernetes import kueue, seen
from bastion.adapters.kubernetes.api import KubernetesApi, Listing
from bastion.adapters.kubernetes.kueue import SeenWorkload
from bastion.adapters.kubernetes.seen import SeenJobSet
from bastion.adapters.kubernetes.workloads import Workloads
from bastion.testing.manual_clock import ManualClock
from tests.support.gang_documents import ADMITTED, EVICTED, Documents, Json, deleting, workload


class _Api:
    """Counts requests."""

    def __init__(self, *items: Json) -> None:
        self.items = items
        self.requests = 0

    def list_each(
        self, path: str, reduce: Callable[[Mapping[str, Any]], Any], *, label_selector: str = ""
    ) -> Listing[Any]:
        assert label_selector
        self.requests += 1
        return Listing(items=[reduce(each) for each in self.items], resource_version="1")


def _seen(document: Json) -> SeenWorkload:
    found = kueue.shrink(document)
    assert found is not None
    return found


BEFORE = _seen(workload(ADMITTED))


def _workloads(api: _Api, clock: ManualClock) -> tuple[Workloads, SeenJobSet]:
    made = Workloads(
        cast(KubernetesApi, api), "default", clock, cache=cast(Any, None), asking=lambda: contextlib.nullcontext()
    )
    document = Documents().jobset
    assert document is not None
    return made, seen.jobset(document)


@pytest.mark.parametrize("items", [(), (deleting(workload(ADMITTED)),), (workload(EVICTED),)])
def test_what_ended_pods_stays_although_the_cache_shows_the_workload_of_before(items: tuple[Json, ...]) -> None:
    api = _Api(*items)
    workloads, jobset = _workloads(api, ManualClock())
    assert workloads.confirm(jobset, BEFORE, ending=False) == BEFORE
    told = [workloads.confirm(jobset, BEFORE, ending=True) for _ in range(3)]
    assert told == [_seen(items[0]) if items else None] * 3
    assert api.requests == 1


def test_an_answer_from_before_kueue_did_anything_is_soon_followed_by_another() -> None:
    api, clock = _Api(workload(ADMITTED)), ManualClock()
    workloads, jobset = _workloads(api, clock)
    assert [workloads.confirm(jobset, BEFORE, ending=True) for _ in range(3)] == [BEFORE] * 3
    assert api.requests == 1
    api.items = (workload(EVICTED),)
    clock.advance(2.0)
    assert [workloads.confirm(jobset, BEFORE, ending=True) for _ in range(3)] == [_seen(workload(EVICTED))] * 3
    clock.advance(2.0)
    assert workloads.confirm(jobset, BEFORE, ending=True) == _seen(workload(EVICTED))
    assert api.requests == 2
