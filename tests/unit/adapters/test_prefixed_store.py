"""A ROOT is a prefix in a bucket."""

from __future__ import annotations

from collections.abc import Iterator

from bastion.adapters.prefixed_store import PrefixedStore
from bastion.core.bucket.objects import ObjectMeta
from bastion.testing.memory_store import MemoryStore


class _AnyName(MemoryStore):
    """S3 lists names that no call of a store takes."""

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        for name in ("jobs/active/a", "jobs/active/line\nend", "jobs/active/line\rend", "jobs/active/z"):
            yield ObjectMeta(key=f"team-bastion/{name}", size=1, generation=1, updated=0.0)


def test_a_name_with_a_line_end_is_not_listed() -> None:
    store = PrefixedStore(_AnyName(), "team-bastion/")
    found = [meta.key for meta in store.list("jobs/active/")]
    assert found == ["jobs/active/a", "jobs/active/z"]
    assert [store.head(key) for key in found] == [None, None]
