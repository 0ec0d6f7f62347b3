"""Every store, against the store in memory as the model: the same calls give the same results, whatever the keys."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bastion.adapters.folder.store import DirectoryStore
from bastion.adapters.prefixed_store import PrefixedStore
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.errors import NotFound, PreconditionFailed
from bastion.emulators.gcs.fault_rules import FaultRule
from bastion.ports import ObjectStore
from bastion.testing.memory_store import MemoryStore
from tests.support.gcs_storage import HASTY, Storage
from tests.support.s3_stub import S3Stub

# Few, so that they meet: files in the way of folders, folders in the way of files, and what cannot be either.
KEYS = st.sampled_from(
    [
        "a", "a/", "a/b", "a/b/", "a/b/c", "a/b/c/d", "a.b", "a/b.c", "a//b", "/a", "./", "../", "a/..", "a/../b",
        "a/.", ".objects", ".objects/a", "a/.objects", "b" * 256, "a/" + "b" * 256, "é", "\uffee", "\U0001f600",
    ]
)  # fmt: skip
DATA = st.binary(max_size=8)
# Which of the generations known for a key a call names: the present one most of the time.
CHOICES = st.sampled_from(["present", "present", "present", "zero", "former"])


class StoreAgainstModel(RuleBasedStateMachine):
    """Generations differ between the two stores, so calls choose them by role. Children say which store it is."""

    def __init__(self) -> None:
        super().__init__()
        self.model = MemoryStore()
        self.store: ObjectStore = MemoryStore()
        # Per key, the generations so far as (model's, store's).
        self.generations: dict[str, list[tuple[int, int]]] = {}

    @initialize(prefixed=st.booleans())
    def open(self, prefixed: bool) -> None:
        self.prefixed = prefixed
        self.reopen()

    @rule()
    def reopen(self) -> None:
        store = self.connect()
        self.store = PrefixedStore(store, "x-bastion/") if self.prefixed else store

    def connect(self) -> ObjectStore:
        """Another client of this machine's bucket."""
        raise NotImplementedError

    def _choose(self, key: str, choice: str) -> tuple[int, int]:
        known = self.generations.get(key, [])
        match choice:
            case "zero":
                return 0, 0
            case "former" if len(known) > 1:
                return known[-2]
            case _:
                return known[-1] if known and self.model.head(key) else (0, 0)

    def _note(self, key: str, expected: ObjectMeta, actual: ObjectMeta) -> None:
        assert (actual.key, actual.size) == (expected.key, expected.size)
        known = self.generations.setdefault(key, [])
        assert not known or actual.generation > known[-1][1]
        known.append((expected.generation, actual.generation))

    @rule(key=KEYS, data=DATA, choice=CHOICES, method=st.sampled_from(["put", "append"]))
    def write(self, key: str, data: bytes, choice: str, method: str) -> None:
        in_model, in_store = self._choose(key, choice)
        try:
            expected = getattr(self.model, method)(key, data, generation=in_model)
        except PreconditionFailed:
            with pytest.raises(PreconditionFailed):
                getattr(self.store, method)(key, data, generation=in_store)
        else:
            self._note(key, expected, getattr(self.store, method)(key, data, generation=in_store))

    @rule(key=KEYS, choice=CHOICES)
    def delete(self, key: str, choice: str) -> None:
        in_model, in_store = self._choose(key, choice)
        try:
            self.model.delete(key, generation=in_model)
        except PreconditionFailed:
            with pytest.raises(PreconditionFailed):
                self.store.delete(key, generation=in_store)
        else:
            self.store.delete(key, generation=in_store)

    @rule(key=KEYS, start=st.integers(0, 10))
    def read(self, key: str, start: int) -> None:
        try:
            expected = self.model.get(key, start=start)
        except NotFound:
            assert self.store.head(key) is None
            with pytest.raises(NotFound):
                self.store.get(key, start=start)
        else:
            actual = self.store.get(key, start=start)
            assert (actual.data, actual.meta.size) == (expected.data, expected.meta.size)
            assert actual.meta.generation == self.generations[key][-1][1]
            found = self.store.head(key)
            assert found is not None
            assert replace(found, updated=math.floor(found.updated)) == replace(
                actual.meta, updated=math.floor(actual.meta.updated)
            )

    @rule(prefix=st.one_of(st.sampled_from(["", ".", ".."]), KEYS), start_after=st.one_of(st.just(""), KEYS))
    def list(self, prefix: str, start_after: str) -> None:
        expected = [meta.key for meta in self.model.list(prefix, start_after=start_after)]
        assert [meta.key for meta in self.store.list(prefix, start_after=start_after)] == expected

    @invariant()
    def listings_agree(self) -> None:
        expected = [(meta.key, meta.size, self.generations[meta.key][-1][1]) for meta in self.model.list("")]
        assert [(meta.key, meta.size, meta.generation) for meta in self.store.list("")] == expected


class DirectoryAgainstModel(StoreAgainstModel):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="store-model-"))

    def connect(self) -> ObjectStore:
        return DirectoryStore(self.folder / "bucket", fsync=False)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)


class GcsAgainstModel(StoreAgainstModel):
    """Cloud Storage, where some requests have to be made again."""

    storage: ClassVar[Storage]

    def __init__(self) -> None:
        super().__init__()
        self.bucket = self.storage.new_bucket()

    def connect(self) -> ObjectStore:
        return self.storage.store(self.bucket, patience=HASTY)


class S3AgainstModel(StoreAgainstModel):
    """S3 as Amazon documents it, with a second between two writes: then generations increase."""

    stub: ClassVar[S3Stub]

    def __init__(self) -> None:
        super().__init__()
        self.bucket = self.stub.new_bucket()

    def connect(self) -> ObjectStore:
        return self.stub.store(self.bucket, HASTY)


@pytest.fixture(scope="module", autouse=True)
def stub() -> Iterator[None]:
    rules = [FaultRule(fault="429", percent=5), FaultRule(fault="reset-body", method="GET", percent=3)]
    S3AgainstModel.stub = S3Stub(rules=rules)
    S3AgainstModel.stub.let_time_pass()
    S3AgainstModel.stub.open()
    yield
    S3AgainstModel.stub.close()


@pytest.fixture(scope="module", autouse=True)
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    # 429 leaves no doubt; after a doubtful failure a refused creation is not told from an accepted one.
    rules = [FaultRule(fault="429", percent=5), FaultRule(fault="reset-body", method="GET", percent=3)]
    GcsAgainstModel.storage = Storage(tmp_path_factory.mktemp("storage"), rules=rules)
    GcsAgainstModel.storage.open()
    yield
    GcsAgainstModel.storage.close()


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


DirectoryAgainstModel.TestCase.settings = _settings(120)
GcsAgainstModel.TestCase.settings = _settings(40)
S3AgainstModel.TestCase.settings = _settings(15)
TestDirectoryAgainstModel = DirectoryAgainstModel.TestCase
TestGcsAgainstModel = GcsAgainstModel.TestCase
TestS3AgainstModel = S3AgainstModel.TestCase
