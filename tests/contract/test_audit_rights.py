"""Only the daemon writes the audit trail: tried by other Unix users on a folder, and with tokens at the endpoint."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from bastion.client.audit import AuditFilter, read_audit
from bastion.core.bucket import keys
from bastion.core.errors import AccessDenied
from bastion.core.instants import utc_day
from bastion.core.model.audit import Request
from bastion.daemon.act.audit_trail import AuditTrail
from bastion.ports import ObjectStore
from tests.support.inbox_stages import InboxStage, endpoint_stage, folder_stage
from tests.support.unix_users import ALICE, MALLORY, as_root, call_as

NOW = time.time()
TODAY = keys.audit(utc_day(NOW))


@pytest.fixture(params=[pytest.param("folder", marks=as_root), "endpoint"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InboxStage]:
    with folder_stage() if request.param == "folder" else endpoint_stage(tmp_path) as stage:
        stage.call("daemon", write)
        yield stage


def write(store: ObjectStore, text: str = "begins") -> None:
    trail = AuditTrail(store, lambda: NOW, time.monotonic)
    trail.note_daemon(Request.DAEMON, f"line of {text}", text)
    assert trail.flush(), trail.alarm


def read(store: ObjectStore) -> list[str]:
    return [line.why for line in read_audit(store, AuditFilter())]


def generation(store: ObjectStore) -> int:
    meta = store.head(TODAY)
    assert meta is not None
    return meta.generation


def append(store: ObjectStore) -> None:
    store.append(TODAY, b"forged\n", generation=generation(store))


def overwrite(store: ObjectStore) -> None:
    store.put(TODAY, b"forged\n", generation=generation(store))


def delete(store: ObjectStore) -> None:
    store.delete(TODAY, generation=generation(store))


def begin_part(store: ObjectStore) -> None:
    store.put(f"{TODAY}.1", b"forged\n", generation=0)


def begin_day(store: ObjectStore) -> None:
    store.put(keys.audit("29991231"), b"forged\n", generation=0)


@pytest.mark.parametrize("attack", [append, overwrite, delete, begin_part, begin_day], ids=lambda each: each.__name__)
def test_users_read_the_trail_and_cannot_write_it(stage: InboxStage, attack: Callable[[ObjectStore], None]) -> None:
    assert stage.call("alice", read) == ["begins"]
    with pytest.raises(AccessDenied):
        stage.call("alice", attack)
    stage.call("daemon", partial(write, text="goes on"))
    assert stage.call("alice", read) == ["begins", "goes on"]


def succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except PermissionError:
        return False
    return True


@as_root
@pytest.mark.parametrize("uid", [ALICE, MALLORY])
def test_users_of_a_folder_cannot_get_round_the_store_either(uid: int) -> None:
    with folder_stage() as stage:
        stage.call("daemon", write)
        assert stage.folder is not None
        file = stage.folder / TODAY

        def attack() -> list[int]:
            attempts: list[Callable[[], object]] = [
                lambda: file.open("ab"),
                file.unlink,
                lambda: file.rename(file.with_suffix(".x")),
                lambda: file.parent.rename(file.parent.with_suffix(".x")),
                lambda: file.chmod(0o666),
                lambda: os.link(file, file.with_suffix(".y")),
                lambda: file.with_suffix(".1").write_bytes(b"forged\n"),
            ]
            return [number for number, attempt in enumerate(attempts) if succeeds(attempt)]

        assert call_as(uid, attack) == []
