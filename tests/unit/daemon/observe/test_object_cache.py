"""Parsed objects by generation."""

from __future__ import annotations

from dataclasses import replace

from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta
from bastion.daemon.observe.object_cache import ObjectCache
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import StoredObject
from bastion.testing.memory_store import MemoryStore


class WholeSeconds(MemoryStore):
    """Tells the instant of a download to the second only, as Cloud Storage does."""

    def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
        stored = super().get(key, start=start, max_bytes=max_bytes)
        return replace(stored, meta=replace(stored.meta, updated=float(int(stored.meta.updated))))


def test_a_download_does_not_round_the_instant_by_which_jobs_queue() -> None:
    store = WholeSeconds(now=lambda: 100.75)
    written = store.put("jobs/active/a", b"1", generation=0)
    cache: ObjectCache[bytes] = ObjectCache(store, "jobs/active/", lambda _, data: data)
    cache.take([*store.list("jobs/active/")])
    threads = ThreadPool(1)
    cache.fetch(["a"], threads)
    threads.dismiss()
    assert cache.values["a"] == b"1"
    listed: ObjectMeta = cache.listed["a"]
    assert listed.updated == written.updated == 100.75
