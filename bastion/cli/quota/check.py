"""`bastion quota check FILE`: show what a quota file means, or all of its problems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.output import emit_json, plain, say
from bastion.cli.quota import file as quota_file
from bastion.cli.quota import fit
from bastion.core.errors import EXIT_REFUSED, InvalidDocument
from quota import QuotaFileError, load, render_check

if TYPE_CHECKING:
    from scheduler import Job


def _run(call: Invocation) -> int:
    path = call.operands[0]
    try:
        policy = load(quota_file.read(path))
    except QuotaFileError as error:
        quota_file.tell_problems(path, error, json=call.json)
        return EXIT_REFUSED
    shares = list(fit.small_shares(policy))
    jobs = _jobs(call)
    misfits = fit.misfits(policy, jobs or ())
    if call.json:
        emit_json(
            {
                **quota_file.document(policy),
                "shares_below_a_slice": [
                    {
                        "project_id": share.project,
                        "resource_type": share.resource_type,
                        "entitlement": share.entitlement,
                        "smallest": share.smallest.name,
                    }
                    for share in shares
                ],
                "jobs_beyond_their_share": None
                if jobs is None
                else [
                    {
                        "name": misfit.job.name,
                        "project_id": misfit.job.project_id,
                        "resource_type": misfit.resource_type,
                        "never": misfit.never,
                        "message": misfit.why,
                    }
                    for misfit in misfits
                ],
            }
        )
        return 0
    for line in render_check(policy).splitlines():
        print(plain(line))
    for line in (
        *fit.lines(shares, "Shares smaller than the smallest slice"),
        *fit.lines(misfits, "Jobs larger than their project's share"),
    ):
        print(plain(line))
    return 0


def _jobs(call: Invocation) -> tuple[Job, ...] | None:
    """The jobs of the bastion that the flags name; None if they name none, or its jobs are unknown."""
    if call.flags.root is None and call.flags.bastion is None and call.flags.bucket is None:
        return None
    from bastion.core.status.jobs import published_jobs

    client, _ = open_client(call)
    try:
        status = client.status()
        if status is None:
            raise InvalidDocument("no daemon has published a status")
        return published_jobs(status)
    except InvalidDocument as error:
        say(f"bastion: cannot list the jobs: {plain(error)}")
        return None


CHECK = Command(
    summary="Checks a quota file and shows each project's share; exits with 64 if the file is not valid.",
    usage="FILE [--root=ROOT] [--output=json]",
    details="""FILE may be - for stdin. Every problem is shown with its line. A bastion whose quota file is not valid
        keeps using the last valid one.

        The command lists projects whose share is smaller than the smallest slice of a type: they can only borrow. If a
        flag names a bastion, it also lists waiting and running jobs that would exceed their project's share.""",
    examples=(
        "bastion quota check project-quotas.config",
        "cat quotas.toml | bastion quota check -",
        "bastion quota check new.config --root=gs://my-bucket/team-bastion",
    ),
    operands=(1, 1),
    takes_output=True,
    run=_run,
)
