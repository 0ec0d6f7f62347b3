"""Stores that ignore a condition, and machines whose clocks are wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bastion.adapters.forwarding_store import ForwardingStore
from bastion.cli.doctor import store_probe
from bastion.cli.doctor.finding import Report
from bastion.core.bucket.objects import ObjectMeta
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore


class Careless(ForwardingStore):
    """Ignores the generation of some mutations."""

    def __init__(self, store: MemoryStore, ignores: str) -> None:
        super().__init__(store)
        self.ignores = ignores

    def _generation(self, key: str, given: int, kind: str) -> int:
        found = self.head(key)
        return given if kind not in self.ignores else found.generation if found is not None else 0

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        kind = "replace" if generation else "create"
        return super().put(key, data, generation=self._generation(key, generation, kind))

    def delete(self, key: str, *, generation: int) -> None:
        super().delete(key, generation=self._generation(key, generation, "delete"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(now=clock.now)


def test_a_store_that_keeps_conditions_is_fine_and_left_empty(store: MemoryStore, clock: ManualClock) -> None:
    report = Report()
    assert store_probe.probe(report, store, clock, name="x") == 0.0
    assert report.findings == []
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    ("ignores", "named"),
    [
        ("create", "creating an object that exists"),
        ("replace", "replacing another generation"),
        ("delete", "deleting another generation"),
        ("create replace delete", "exists, replacing another generation, deleting another generation"),
    ],
)
def test_a_store_that_ignores_a_condition_is_named(
    store: MemoryStore, clock: ManualClock, ignores: str, named: str
) -> None:
    report = Report()
    store_probe.probe(report, Careless(store, ignores), clock, name="x")
    assert [named in found.what for found in report.findings] == [True]
    assert list(store.list("")) == []


class Elsewhere(ForwardingStore):
    """A bucket whose clock differs."""

    def __init__(self, store: MemoryStore, ahead: float) -> None:
        super().__init__(store)
        self.ahead = ahead

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        meta = super().put(key, data, generation=generation)
        return replace(meta, updated=meta.updated + self.ahead)


@pytest.mark.parametrize(
    ("ahead", "told"),
    [(29.0, []), (-3600.0, ["1h ahead of the bucket's"]), (90.0, ["1m behind the bucket's"])],
)
def test_a_clock_that_is_wrong_is_told(store: MemoryStore, clock: ManualClock, ahead: float, told: list[str]) -> None:
    report = Report()
    assert store_probe.probe(report, Elsewhere(store, ahead), clock, name="x") == -ahead
    assert [found.what.partition(" is ")[2] for found in report.findings] == told
