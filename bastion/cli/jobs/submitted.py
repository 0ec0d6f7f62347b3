"""What `launch` and `submit` share: report what was submitted, and wait for it."""

from __future__ import annotations

from absl import flags

from bastion.cli import phrases
from bastion.cli.command import Invocation
from bastion.cli.connect import start_command, warn_if_no_daemon
from bastion.cli.jobs.log_printer import LogPrinter
from bastion.cli.jobs.waiting import next_steps, tell_end, wait_for
from bastion.cli.output import emit_json, say
from bastion.client import Client, Ended, FollowOptions, JobInfo, Stage, Submitted
from bastion.core.bucket import keys
from bastion.core.errors import Refused
from bastion.core.model.job_spec import JobSpec
from bastion.user_config.target import Target


def define_check(values: flags.FlagValues) -> None:
    """Define `--check`."""
    flags.DEFINE_boolean(
        "check",
        True,
        "Refuse a job that can never start under the present quota: an unknown project, a user who is not a member, a "
        "job larger than the pool. --nocheck submits it anyway; it waits until the quota changes.",
        flag_values=values,
    )


def check_quota(call: Invocation, client: Client, spec: JobSpec) -> None:
    """Refuse a job that can never start under the present quota or settings; with --nocheck only warn.

    Raises:
        Refused: why, and what to do. Also if the bastion's own host does not run what the job asks of it.
    """
    from bastion.client.jobs.startable import host_obstacle, no_place, obstacle

    refused = host_obstacle(client, spec)
    if refused:
        raise Refused(refused)
    unplaced = no_place(client, spec)
    problem, change = (unplaced, "the settings change") if unplaced else (obstacle(client, spec), "the quota changes")
    if problem is None:
        say("bastion: cannot check whether this job can start: no daemon has published a quota here yet")
    elif problem and call.flags.check:
        raise Refused(f"{problem}; use --nocheck to submit the job anyway and wait until {change}")
    elif problem:
        say(f"bastion: {problem}; the job waits until {change}")


def report_submitted(call: Invocation, client: Client, target: Target, submitted: Submitted, *, waiting: bool) -> None:
    """Report the submission on stderr; with `--output=json` also on stdout, unless the caller waits."""
    verb = "updated" if submitted.update else "submitted"
    say(f"{verb} {submitted.name}\n{next_steps(submitted.name, target)}")
    if client.store.head(keys.LEASE) is None:
        say(
            f"bastion: no daemon has ever run for {target.root.url}; "
            f"the job waits until one does ({start_command(target)})"
        )
    elif not waiting:
        warn_if_no_daemon(client, target)
    if not waiting and client.backlog(again=False) and not submitted.update:
        kept_out = client.kept_out(JobInfo(name=submitted.name, uid=submitted.uid, stage=Stage.SUBMITTED))
        if kept_out is not None:
            say(f"bastion: {phrases.backlog(kept_out)}")
    if call.json and not waiting:
        emit_json(_document(target, submitted))


def wait_for_submitted(call: Invocation, client: Client, target: Target, submitted: Submitted) -> int:
    """Wait until the job has ended, and return its exit code."""
    waited = wait_for(
        client,
        target,
        submitted.name,
        submitted.uid,
        generation=submitted.generation,
        what=FollowOptions(),
        printer=LogPrinter(stdout_free=call.json),
    )
    if waited.ended is not None:
        tell_end(submitted.name, waited.ended)
    if call.json:
        emit_json(_document(target, submitted) | _ending(waited.ended, waited.exit_code))
    return waited.exit_code


def _document(target: Target, submitted: Submitted) -> dict[str, object]:
    return {
        "name": submitted.name,
        "uid": submitted.uid,
        "generation": submitted.generation,
        "update": submitted.update,
        "root": target.root.url,
    }


def _ending(ended: Ended | None, exit_code: int) -> dict[str, object]:
    result = ended.result if ended else None
    return {
        "outcome": result.outcome if result else None if ended is None else "refused",
        "exit_code": exit_code,
        "message": ended.message if ended else "detached; the job keeps running",
        "failed_worker": result.failed_worker if result else None,
    }
