"""Other specs out of a job's own: the next version of a live job, or a completed job again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bastion.client.jobs.job_info import JobInfo, Stage
from bastion.client.jobs.lookup import Lookup
from bastion.core.bucket import bundles, keys
from bastion.core.errors import Refused
from bastion.core.model import job_spec, spec_changes
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.lifecycle import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What becomes different; None: it stays as it is.

    Attributes:
        max_run_seconds, max_wait_seconds: 0: no limit any more.
        labels, env: Values by name, beside those that are there.
    """

    priority: int | None = None
    project_id: str | None = None
    max_run_seconds: int | None = None
    max_wait_seconds: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None

    def apply(self, document: dict[str, Any]) -> None:
        """Change a spec's document in place. Raises Refused for a limit that the job cannot have."""
        metadata = document["metadata"]
        if self.priority is not None:
            metadata["priority"] = self.priority
        if self.project_id is not None:
            metadata["project_id"] = self.project_id
        if self.labels:
            metadata["labels"] = {**(metadata.get("labels") or {}), **self.labels}
        if self.env:
            document["env_vars"] = {**(document.get("env_vars") or {}), **self.env}
        if self.command is not None:
            document["command"] = self.command
        if self.max_run_seconds is not None:
            document["limits"] = {**(document.get("limits") or {}), "max_run_seconds": self.max_run_seconds or None}
        if self.max_wait_seconds is not None:
            if not document.get("runner"):
                raise Refused("--max_wait applies only to slice jobs, and this job has no slice; leave it out")
            document["runner"]["max_wait_seconds"] = self.max_wait_seconds or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """An update that is ready to be submitted.

    Attributes:
        changed: In words; see `spec_changes.text`.
        stops: Whether the job runs, and the update ends its attempt.
    """

    spec: JobSpec
    changed: str
    stops: bool


def edit(client: Lookup, name: str, changes: Changes) -> Edit:
    """Make the next version of a live job; nothing is written.

    Raises:
        Refused: there is no such job, it has ended or is not accepted yet, or nothing would change.
    """
    info = client.require(name)
    record = info.record
    if record is None or info.stage is not Stage.KNOWN:
        raise Refused(_why_not(info))
    if record.status not in (Status.PENDING, Status.ACTIVE):
        raise Refused(f"the job {name!r} is ending ({record.status.value}); run it again with bastion rerun {name}")
    document = record.job.document
    changes.apply(document)
    document["metadata"]["version"] = (record.job.version or 0) + 1
    spec = job_spec.from_document(document, name=name)
    changed = spec_changes.changes(spec, record.job)
    if not changed:
        raise Refused(f"the job {name!r} is like this already; nothing was changed")
    stops = record.status is Status.ACTIVE and not spec_changes.keeps_running(changed)
    return Edit(spec=spec, changed=spec_changes.text(changed), stops=stops)


def _why_not(info: JobInfo) -> str:
    if info.stage is Stage.COMPLETED:
        return f"the job {info.name!r} has ended; run it again with bastion rerun {info.name}"
    if info.stage is Stage.INVALID:
        return f"the spec of {info.name!r} is refused ({info.problem}); cancel it and launch the job again"
    return f"the daemon has not accepted {info.name!r} yet; try again in some seconds (bastion why {info.name})"


def again(client: Lookup, name: str, changes: Changes, *, new_name: str, user_id: str) -> JobSpec:
    """The spec of a job, live or completed, for a new job of that user.

    Raises:
        Refused: there is no such job, or its spec is not there any more.
    """
    info = client.require(name)
    spec = client.spec(name, info.uid)
    if spec is None:
        raise Refused(f"the spec of {name!r} cannot be read any more; launch the job anew")
    document = spec.document
    document.pop("result", None)
    document["name"] = new_name
    created = job_spec.creation_time(client.clock.now())
    document["metadata"].update(user_id=user_id, version=None, creation_time=created)
    changes.apply(document)
    return job_spec.from_document(document, name=new_name)


def is_stored(client: Lookup, url: str | None) -> bool:
    """Whether the code that a spec names is in the bastion's bucket; that of another place counts as there."""
    digest = bundles.digest_in(url or "")
    if not digest or url != f"{client.root.url}/{keys.bundle(digest)}":
        return True
    return client.store.head(keys.bundle(digest)) is not None
