"""`bastion cancel JOB...`: request the end of jobs."""

from __future__ import annotations

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client, warn_if_no_daemon
from bastion.cli.jobs.waiting import tell_end, wait_for
from bastion.cli.output import emit_json, plain, say
from bastion.cli.target import Target
from bastion.cli.user import default_user
from bastion.client import Cancelled, Client, FollowOptions
from bastion.core.errors import EXIT_DETACHED, Refused


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_boolean("wait", False, "Wait until the jobs have ended.", flag_values=values)


def _run(call: Invocation) -> int:
    client, target = open_client(call)
    user = default_user()
    for name in call.operands:
        client.check_name(name)  # check every name before cancelling any job
    code = 0
    cancelled: list[Cancelled] = []
    for name in dict.fromkeys(call.operands):
        try:
            done = client.cancel(name, by=user)
        except Refused as error:
            say(f"bastion: {plain(error)}")
            code = error.exit_code
            continue
        cancelled.append(done)
        say(_outcome_text(done))
    if cancelled and not call.flags.wait:
        warn_if_no_daemon(client, target)
    if call.flags.wait:
        waited = _wait(client, target, cancelled)
        code = waited or code
    if call.json:
        emit_json([{"name": c.name, "uid": c.uid, "already": c.already, "removed": c.removed} for c in cancelled])
    return code


def _outcome_text(done: Cancelled) -> str:
    if done.removed:
        return f"removed the refused spec of {done.name}"
    return f"{done.name} is already being cancelled" if done.already else f"cancelling {done.name}"


def _wait(client: Client, target: Target, cancelled: list[Cancelled]) -> int:
    for done in cancelled:
        if done.uid and not done.removed:
            waited = wait_for(
                client,
                target,
                done.name,
                done.uid,
                generation=done.generation,
                what=FollowOptions(logs=False),
                printer=None,
                hint=False,
            )
            if waited.ended is None:
                say("detached; the jobs are still being cancelled")
                return EXIT_DETACHED
            tell_end(done.name, waited.ended)
    return 0


CANCEL = Command(
    summary="Cancels waiting and running jobs.",
    usage="JOB... [--wait]",
    details="""A running job gets SIGTERM and a grace period. The request applies at the next poll; --wait waits until
        the jobs have ended. If the daemon refuses a job's spec (INVALID), the spec is deleted.

        Exits with 0 if all jobs are being cancelled, and with 64 if one does not exist or has already ended.""",
    examples=("bastion cancel train-1", "bastion cancel --wait train-1 train-2"),
    operands=(1, None),
    takes_output=True,
    define=_define,
    run=_run,
)
