"""Jobs that a new job awaits: their uids, and whether it can start after them."""

from __future__ import annotations

from bastion.client.jobs.job_info import JobInfo, Stage
from bastion.client.jobs.lookup import Lookup
from bastion.core.errors import Refused
from bastion.core.model.job_limits import Dependency, On
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.lifecycle import Status


def find(client: Lookup, name: str, *, on: On, of: str) -> Dependency:
    """The job of that name, live, not accepted yet, or completed, as a dependency of the job `of`.

    Raises:
        Refused: there is none, or `of` could never start after it.
    """
    client.check_name(name)
    if name == of:
        raise Refused(f"a job cannot start after itself ({name}); name another job")
    info = client.require(name)
    problem = _obstacle(info, on)
    if problem:
        raise Refused(problem)
    return Dependency(job=name, uid=info.uid, on=on)


def check(client: Lookup, spec: JobSpec) -> None:
    """Check what a spec says of jobs that it awaits; raises Refused if it can never start after them."""
    for each in spec.limits.after:
        if each.job == spec.name:
            raise Refused(f"limits.after: a job cannot start after itself ({each.job}); name another job")
        info = client.look(each.job)
        if info is None or info.uid != each.uid:
            result = client.result(each.job, each.uid)
            if result is None:
                found = f"the present job of that name has uid {info.uid}" if info and info.uid else "there is none"
                raise Refused(f"limits.after: no job {each.job} with uid {each.uid} is known; {found}")
            info = JobInfo(name=each.job, uid=each.uid, stage=Stage.COMPLETED, result=result)
        problem = _obstacle(info, each.on)
        if problem:
            raise Refused(f"limits.after: {problem}")


def _obstacle(info: JobInfo, on: On) -> str:
    """Why no job can start after this one; empty if one can."""
    name = info.name
    if info.stage is Stage.INVALID:
        return f"the spec of {name} is refused, so nothing can start after it; see bastion why {name}"
    if not info.uid:
        return f"another program runs {name}, and it has no uid here; nothing can start after it"
    outcome = info.result.outcome if info.result is not None else ""
    record = info.record
    if not outcome and record is not None and record.status not in (Status.PENDING, Status.ACTIVE):
        outcome = record.outcome.outcome if record.outcome is not None else ""
    if on is On.SUCCEEDED and outcome not in ("", "succeeded"):
        how = {"failed": "has failed", "cancelled": "was cancelled", "refused": "was refused"}
        return f"{name} {how.get(outcome, 'has not succeeded')}; use --after_any={name} to start after any end"
    return ""
