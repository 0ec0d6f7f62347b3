"""A deployment's buckets at an endpoint, with everybody who might come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.rights.how_to import ADMINS, BASTION, BUCKET, DAEMON, PRIVATE, PROJECT, USERS, WORKER
from tests.support.rights.stage import Stage
from tests.support.terraform.bucket_module import BucketModule

CALLERS = {
    "user": "user:alice@example.com",
    "other user": "user:bob@example.com",
    "stranger": "user:mallory@example.com",
    "worker": WORKER,
    "other project's worker": "serviceAccount:bastion-worker@other-project.iam.gserviceaccount.com",
    "daemon": DAEMON,
    "admin": "user:root@example.com",
    "project editor": "serviceAccount:1234-compute@developer.gserviceaccount.com",
    "anonymous": "",
}
GROUPS = {
    USERS: [CALLERS["user"], CALLERS["other user"]],
    ADMINS: [CALLERS["admin"]],
    f"projectEditor:{PROJECT}": [CALLERS["project editor"]],
}
VARIABLES = {
    "project_id": PROJECT,
    "region": "us-central1",
    "bucket": BUCKET,
    "private_bucket": PRIVATE,
    "bastion_name": BASTION,
    "users": [USERS],
    "admins": [ADMINS],
    "daemon": DAEMON,
    "worker": WORKER,
    "data_buckets": {},
    "force_destroy": False,
}


INBOXES = {"alice": CALLERS["user"], "bob": CALLERS["other user"]}


def terraform(planted: str = "", *, inboxes: Mapping[str, str] | None = None) -> BucketModule:
    return BucketModule({**VARIABLES, "inboxes": inboxes or {}}, planted)


@contextmanager
def opened(folder: Path, roles: Mapping[str, Sequence[str]]) -> Iterator[Stage]:
    stage = Stage(
        folder,
        buckets=[BUCKET, PRIVATE],
        callers={name: principal for name, principal in CALLERS.items() if principal},
        groups=GROUPS,
        roles=roles,
    )
    try:
        yield stage
    finally:
        stage.close()
