"""Check before submission whether a job can ever start under the present quota.

Uses the quota file; if this user cannot read that (it may be in a private bucket), the status, which lists projects and
the pool but no members.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from bastion.client.jobs.client import Client
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import AccessDenied, InvalidDocument, NotFound
from bastion.core.model import bastion_host_jobs, daemon_settings
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.provisioning import BUILT_IN, why_not_placed
from bastion.core.status.document import StatusDocument
from quota import Policy, QuotaFileError
from quota.permissions import Asked, denial

# Units by resource type.
Needs = list[tuple[str, int]]


def obstacle(client: Client, spec: JobSpec) -> str | None:
    """Return why the job can never start, and what to do; empty if it can, None if the bucket has no quota."""
    policy, problem = None, None
    # The quota file may be in another bucket, or the last valid one in force.
    with contextlib.suppress(NotFound, AccessDenied, QuotaFileError):
        policy = client.policy(again=False)
        problem = _by_file(policy, spec, _needs(spec))
    if problem == "":
        return problem  # most jobs: one request or none
    try:
        status = client.status(again=False)
    except InvalidDocument:
        return problem
    if status is None or not status.quota.in_force:
        return problem
    if policy is not None:
        problem = _by_file(policy, spec, _needs(spec, status))
    if problem == "":
        return problem
    if problem is not None and status.quota.root in ("", client.root.url, status.root):
        return problem
    # The daemon does not read the quota file that is here.
    return _by_status(status, spec)


def host_obstacle(client: Client, spec: JobSpec) -> str:
    """Return why the bastion's own host does not run what the spec asks of it; empty if it does, or nobody knows."""
    if spec.runner is not None and not spec.has_cleanup:
        return ""
    try:
        status = client.status(again=False)
    except InvalidDocument:
        return ""
    found = status.daemon.bastion_host_jobs if status is not None else None
    return "" if found is None else bastion_host_jobs.why_refused(spec, found.mode, found.reason)


def _by_file(policy: Policy, spec: JobSpec, needs: Needs) -> str:
    user, project = spec.user_id, spec.project_id
    own = policy.projects_of(user)
    if project not in policy.projects:
        return _no_project(project, policy.projects)
    if not policy.is_member(user, project):
        instead = f"choose {' or '.join(f'--project_id={each}' for each in own)}" if own else "check --user_id"
        return (
            f"user {user} is not a member of project {project}; {instead}, or ask the bastion's administrator to add "
            "you in the quota file"
        )
    asked = Asked(instance_type=spec.instance_type, priority=spec.priority, root=spec.as_root, cleanup=spec.has_cleanup)
    denied = denial(project, policy.rules(project), asked)
    if denied is not None:
        return f"{denied.problem}; submit it {denied.instead}, or ask the administrator of the quota file"
    totals = {resource_type: policy.total(resource_type) for resource_type in policy.resource_types}
    problem = _too_much(totals, needs)
    if problem:
        return problem
    for resource_type, amount in needs:
        most = policy.ceiling(project, resource_type)
        if amount > most:
            return (
                f"the job needs {amount} {resource_type}, but the limits in the quota file allow project {project} at "
                f"most {most}; ask for less, or ask its administrator to raise them"
            )
    return ""


def _by_status(status: StatusDocument, spec: JobSpec) -> str:
    if spec.project_id not in status.projects:
        return _no_project(spec.project_id, tuple(status.projects))
    return _too_much({resource_type: pool.total for resource_type, pool in status.pool.items()}, _needs(spec, status))


def no_place(client: Client, spec: JobSpec) -> str:
    """Return why no cluster of the settings has the job's Secrets; empty also if this user cannot read the settings."""
    if spec.runner is None or not spec.runner.has_pod_secrets:
        return ""
    try:
        settings = daemon_settings.load(
            client.store.get(keys.DAEMON_SETTINGS, max_bytes=limits.DOCUMENT_MAX_BYTES).data
        )
    except NotFound:
        settings = BUILT_IN  # nor has a daemon without settings a cluster
    except (AccessDenied, InvalidDocument):
        return ""
    return why_not_placed(settings, spec.runner)


def _no_project(project: str, known: tuple[str, ...]) -> str:
    return (
        f"the quota file has no project {project} (its projects: {', '.join(known) or 'none'}); "
        "correct --project_id, or ask the bastion's administrator to add the project"
    )


def _too_much(totals: Mapping[str, int], needs: Needs) -> str:
    for resource_type, amount in needs:
        if resource_type not in totals:
            return (
                f"the job needs {resource_type}, which the pool does not have (it has: "
                f"{', '.join(totals) or 'nothing'}); choose another --instance_type"
            )
        if amount > totals[resource_type]:
            return (
                f"the job needs {amount} {resource_type}, but the whole pool has {totals[resource_type]}; choose a "
                "smaller --instance_type or fewer --num_replicas"
            )
    return ""


def _needs(spec: JobSpec, status: StatusDocument | None = None) -> Needs:
    """What counts against the quota file. `status` tells what does not, because Kueue decides on it."""
    delegated = status.delegated if status is not None else ()
    return [
        (resource_type, amount)
        for resource_type, amount in sorted(spec.resources.items())
        if amount and resource_type not in delegated
    ]
