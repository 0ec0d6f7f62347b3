"""A bastion at the storage endpoint that is made as the how-to says, for `bastion doctor` to look at."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import bastion
from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.model.lease import LeaseDocument
from bastion.core.status.document import DaemonEntry, HostJobsEntry, QuotaEntry, StatusDocument
from bastion.core.status.packing import pack
from bastion.net.http1 import HttpServer, Request, Response
from bastion.wiring.local_starter_quota import starter_quota
from tests.support.rights import how_to
from tests.support.rights.deployment import opened
from tests.support.rights.how_to import BASTION, BUCKET, PRIVATE, REPOSITORY
from tests.support.rights.stage import Stage

ROOT = f"gs://{BUCKET}/{BASTION}"
QUOTA = starter_quota("alice") + b'\n[admins]\nbastion = ["root"]\n'
_PUBLIC_OFF = {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"}


@contextmanager
def made(folder: Path) -> Iterator[Stage]:
    """With the rights of both pages, but without the inboxes that commands make."""
    with opened(folder, how_to.roles(how_to.SHARED)) as stage:
        stage.grant(how_to.folders(how_to.SHARED), how_to.granted(how_to.SHARED))
        for bucket in (BUCKET, PRIVATE):
            gone = [(role, member) for one, member, role in how_to.removed() if one == BUCKET]
            stage.take_away(bucket, gone)
            settings(stage, bucket, {"iamConfiguration": _PUBLIC_OFF})
        rules = (REPOSITORY / "deploy" / "lifecycle.json").read_text("utf-8").replace("NAME-bastion", BASTION)
        settings(stage, BUCKET, {"lifecycle": json.loads(rules)})
        store(stage, PRIVATE, keys.PROJECT_QUOTAS, QUOTA)
        store(stage, BUCKET, keys.IDENTITY, b'{"format": 1, "mode": "inbox"}')
        running(stage)
        yield stage


def settings(stage: Stage, bucket: str, changed: dict[str, object]) -> None:
    stage.ask("PATCH", f"b/{bucket}", changed)


def store(stage: Stage, bucket: str, key: str, data: bytes) -> int:
    blob = stage.client("owner").bucket(bucket).blob(f"{BASTION}/{key}")
    blob.upload_from_string(data)
    return int(blob.generation or 0)


def running(stage: Stage, *, host_jobs: str = "own-user", alarms: tuple[str, ...] = ()) -> None:
    """What a daemon writes while it runs."""
    quota = stage.client("owner").bucket(PRIVATE).get_blob(f"{BASTION}/{keys.PROJECT_QUOTAS}")
    assert quota is not None
    status = StatusDocument(
        bastion=BASTION,
        root=ROOT,
        mode="inbox",
        alarms=alarms,
        daemon=DaemonEntry(version=bastion.__version__, bastion_host_jobs=HostJobsEntry(mode=host_jobs)),
        quota=QuotaEntry(in_force=True, generation=int(quota.generation or 0), root=f"gs://{PRIVATE}/{BASTION}"),
    )
    store(stage, BUCKET, keys.STATUS, documents.dumps(pack(status)))
    store(stage, BUCKET, keys.LEASE, LeaseDocument(owner="x", epoch=1, renewal=int(time.time())).to_bytes())


@contextmanager
def projects(bindings: Callable[[], list[dict[str, object]]]) -> Iterator[str]:
    """The one call of the Resource Manager API that a project's policy takes; yields its URL."""

    def answer(request: Request) -> Response:
        if (request.method, request.path) != ("POST", "/v1/projects/0:getIamPolicy"):
            return Response(status=404)
        if request.headers.get("authorization") != "Bearer owner":
            error = {"error": {"code": 403, "message": "Permission resourcemanager.projects.getIamPolicy denied"}}
            return Response(status=403, body=json.dumps(error).encode())
        return Response(status=200, body=json.dumps({"version": 1, "bindings": bindings()}).encode())

    server = HttpServer(answer)
    server.open()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.close(0.0)
