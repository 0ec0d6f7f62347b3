"""What the garbage collector does with one object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.cluster import NOTHING
from bastion.emulators.kubernetes.controllers.garbage_decisions import Reference, collect


def _map(
    name: str, owners: Mapping[str, bool] | None = None, *, finalizers: tuple[str, ...] = (), gone: bool = False
) -> Obj:
    """A ConfigMap with owners by uid, and whether each waits for it."""
    references = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": uid, "uid": uid, "blockOwnerDeletion": blocks}
        for uid, blocks in (owners or {}).items()
    ]
    metadata: dict[str, Any] = {"name": name, "namespace": "default", "uid": name, "finalizers": list(finalizers)}
    metadata["ownerReferences"] = references
    if gone:
        metadata["deletionTimestamp"] = "2026-11-23T12:00:00Z"
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def _collect(obj: Obj, *dependents: Obj, **classes: Reference) -> list[tuple[str, str, Any]]:
    outcome = collect(obj, dependents, lambda reference: classes[reference["uid"]])
    return [
        (write.method, write.path.rpartition("/")[2], write.propagation if write.method == "delete" else write.body)
        for write in outcome.writes
    ]


def test_with_an_owner_it_stays() -> None:
    assert _collect(_map("x", {"a": True}), a="solid") == []
    assert collect(_map("x"), (), lambda _: "dangling") == NOTHING


def test_without_owners_it_goes_in_the_background() -> None:
    assert _collect(_map("x", {"a": True}), a="dangling") == [("delete", "x", "Background")]


def test_an_owner_that_waits_takes_it_along_with_its_own_dependents_first() -> None:
    assert _collect(_map("x", {"a": True}), a="waiting") == [("delete", "x", "Background")]
    dependent = _map("y", {"x": True})
    assert _collect(_map("x", {"a": True}), dependent, a="waiting") == [("delete", "x", "Foreground")]
    assert _collect(_map("x", {"a": True}), dependent, a="dangling") == [("delete", "x", "Background")]


@pytest.mark.parametrize("gone", ["dangling", "waiting"])
def test_with_another_owner_it_only_loses_the_reference(gone: Reference) -> None:
    obj = _map("x", {"a": True, "b": False})
    left = [obj["metadata"]["ownerReferences"][1]]
    assert _collect(obj, a=gone, b="solid") == [("patch", "x", {"metadata": {"uid": "x", "ownerReferences": left}})]


def test_a_foreground_deletion_ends_with_the_last_dependent_that_blocks_it() -> None:
    owner = _map("x", finalizers=("other", "foregroundDeletion"), gone=True)
    assert _collect(owner, _map("y", {"x": True})) == []
    released = [("patch", "x", {"metadata": {"uid": "x", "finalizers": ["other"]}})]
    assert _collect(owner, _map("y", {"x": False})) == released
    assert _collect(owner) == released


def test_an_orphaning_deletion_frees_the_dependents_first() -> None:
    owner = _map("x", finalizers=("orphan",), gone=True)
    dependent = _map("y", {"x": True, "z": True})
    left = dependent["metadata"]["ownerReferences"][1:]
    assert _collect(owner, dependent) == [
        ("patch", "y", {"metadata": {"uid": "y", "ownerReferences": left}}),
        ("patch", "x", {"metadata": {"uid": "x", "finalizers": None}}),
    ]


def test_what_is_being_deleted_is_left_alone() -> None:
    assert _collect(_map("x", {"a": True}, gone=True), a="dangling") == []
