"""Buckets whose inboxes are proved: a folder with Unix users, and the storage endpoint with tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from bastion.adapters.folder.store import DirectoryStore
from bastion.adapters.gcs.store import GcsStore
from bastion.adapters.inbox_proof import BucketProof, FolderProof
from bastion.adapters.prefixed_store import PrefixedStore
from bastion.core.bucket import keys
from bastion.core.model.identity import Identity, Inbox
from bastion.core.model.mode import Mode
from bastion.folder_format import inboxes
from bastion.ports import InboxProof, ObjectStore
from tests.support.rights import deployment, how_to
from tests.support.rights.bindings import Granted
from tests.support.rights.stage import Stage
from tests.support.unix_users import DAEMON, UIDS, call_as, shared_folder

T = TypeVar("T")

BASTION = how_to.BASTION
USERS = {
    name: Inbox(member=f"user:{name}@example.com", uid=uid) for name, uid in UIDS.items() if name in ("alice", "bob")
}
IDENTITY = Identity(mode=Mode.INBOX, users=USERS)


@dataclass(frozen=True, kw_only=True)
class InboxStage:
    """`call(who, what)` does something with the bucket as somebody: alice, bob, mallory (who has no inbox), or daemon.

    `folder` is that of the ROOT, if it is one.
    """

    proof: InboxProof
    call: Callable[[str, Callable[[ObjectStore], object]], object]
    folder: Path | None = None

    def problems(self) -> dict[str, str]:
        """What the daemon finds in the inboxes, and why it is not its user's; empty if it is."""
        found: list[tuple[str, str]] = self.call("daemon", partial(_problems, self.proof))  # type: ignore[assignment]
        return dict(found)


def _problems(proof: InboxProof, store: ObjectStore) -> list[tuple[str, str]]:
    return [
        (meta.key, proof.problem(user, IDENTITY.of(user), meta))
        for meta in store.list(keys.INBOX)
        if (user := keys.inbox_user(meta.key))
    ]


@contextmanager
def folder_stage() -> Iterator[InboxStage]:
    with shared_folder() as bucket:
        root = bucket / BASTION

        def open_as_somebody() -> ObjectStore:
            return PrefixedStore(DirectoryStore(bucket, proved_below=f"{BASTION}/{keys.INBOX}"), f"{BASTION}/")

        def set_up() -> None:
            inboxes.keep_closed()
            root.mkdir(mode=0o770)
            open_as_somebody().put(keys.STATUS, b"{}", generation=0)
            assert inboxes.close(str(bucket), BASTION) == []
            inboxes.make(str(root), USERS)

        call_as(DAEMON, set_up)

        def call(who: str, what: Callable[[ObjectStore], object]) -> object:
            return call_as(UIDS[who], lambda: what(open_as_somebody()))

        yield InboxStage(proof=FolderProof(str(root)), call=call, folder=root)


def granted() -> tuple[list[tuple[str, str]], list[Granted]]:
    """The folders and bindings of the two inboxes, beside those of the bastion."""
    role = next(name for name in how_to.roles() if name.endswith("Writer"))
    folders = [(how_to.BUCKET, f"{BASTION}/inbox/{user}/") for user in USERS]
    bindings = [
        Granted(bucket=bucket, folder=folder, role=role, member=inbox.member, condition=None)
        for (bucket, folder), inbox in zip(folders, USERS.values(), strict=True)
    ]
    return folders, bindings


def grant_inboxes(stage: Stage) -> None:
    module = deployment.terraform()
    folders, bindings = granted()
    stage.grant([*module.folders, *folders], [*module.granted, *bindings])


CALLERS = {"alice": "user", "bob": "other user", "mallory": "stranger", "daemon": "daemon"}


@contextmanager
def endpoint_stage(folder: Path) -> Iterator[InboxStage]:
    with deployment.opened(folder, deployment.terraform().roles) as stage:
        grant_inboxes(stage)

        def call(who: str, what: Callable[[ObjectStore], object]) -> object:
            parts, client = f"{BASTION}/append-parts/", stage.client(CALLERS[who])
            bucket = GcsStore(how_to.BUCKET, client=client, parts_prefix=parts, write_interval_seconds=0.0)
            return what(PrefixedStore(bucket, f"{BASTION}/"))

        yield InboxStage(proof=BucketProof(), call=call)
