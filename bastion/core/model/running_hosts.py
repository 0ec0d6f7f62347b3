"""The host of a running attempt that somebody wants to enter, by the job's record."""

from __future__ import annotations

from dataclasses import dataclass

from bastion.core.bucket import keys
from bastion.core.bucket.markers import command_marker
from bastion.core.errors import Refused
from bastion.core.model.gangs import GangRef
from bastion.core.model.job_record import JobRecord
from bastion.core.model.lifecycle import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningHost:
    """One host of the present attempt.

    Attributes:
        worker: Its number among all hosts of the job.
        marker: Value of `BASTION_COMMAND` in every process of its command, and in no other job's.
        on_bastion: Whether it is the bastion's own host.
        zone: Zone or cluster (`clusters.cluster_of`); empty if the provisioner has only its own.
        node: Name of its slice's node.
        node_worker: Its number in the slice.
        identity: Of the cluster, `uid/namespace`.
    """

    job: str
    run: str
    worker: int
    marker: str
    on_bastion: bool
    zone: str
    node: str
    node_worker: int
    identity: str = ""

    @property
    def shown(self) -> str:
        return f"worker {self.worker} of {self.job}"


def running_host(record: JobRecord, worker: int) -> RunningHost:
    """Return a host of the job's present attempt. Raises Refused if no attempt runs, or it has no such host."""
    name, attempt, spec = record.name, record.attempt, record.started_job
    if record.status is not Status.ACTIVE or attempt is None:
        raise Refused(
            f"the job {name!r} is {record.status.value}; only hosts of a running job can be entered "
            f"(bastion why {name})"
        )
    if attempt.ending is not None:
        raise Refused(
            f"attempt {attempt.number} of {name!r} is ending ({attempt.ending.cause.value}: {attempt.ending.message}); "
            f"its hosts cannot be entered any more (bastion why {name})"
        )
    if worker >= spec.hosts:
        numbers = "its only worker is 0" if spec.hosts == 1 else f"its workers are 0 to {spec.hosts - 1}"
        raise Refused(f"the job {name!r} has no worker {worker}; {numbers}")
    if attempt.waiting is not None:
        raise Refused(
            f"attempt {attempt.number} of {name!r} has no hosts yet; try again once it runs: bastion why {name}"
        )
    run = str(keys.Run(uid=record.uid, attempt=attempt.number))
    slices = spec.runner.num_replicas if spec.runner is not None else 1
    per_slice = spec.hosts // slices
    zone = attempt.place.zone if attempt.place is not None else ""
    return RunningHost(
        job=name,
        run=run,
        worker=worker,
        marker=command_marker(run, worker, attempt.public_key),
        on_bastion=spec.runner is None,
        zone=zone,
        node=GangRef(name=keys.gang(run), zone=zone, num_slices=slices).node(worker // per_slice),
        node_worker=worker % per_slice,
        identity=attempt.place.identity if attempt.place is not None else "",
    )
