"""`bastion hold`, `bastion release` and `bastion requeue`: whether jobs start, and start again."""

from __future__ import annotations

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client, warn_if_no_daemon
from bastion.cli.output import emit_json, plain, say
from bastion.client.jobs.job_requests import Requested, ask
from bastion.core import limits
from bastion.core.errors import Refused
from bastion.core.model.job_request import RequestKind
from bastion.user_config.user import default_user

_DOING = {RequestKind.HOLD: "holding", RequestKind.RELEASE: "releasing", RequestKind.REQUEUE: "requeueing"}


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("reason", "", "Why, for the history and `bastion why`.", flag_values=values)


def _run(call: Invocation, kind: RequestKind) -> int:
    reason = call.flags.reason if "reason" in call.flags else ""
    if len(reason) > limits.REQUEST_REASON_MAX_CHARS:
        raise Refused(
            f"--reason is {len(reason)} characters long; the maximum is {limits.REQUEST_REASON_MAX_CHARS}; shorten it"
        )
    client, target = open_client(call)
    user = default_user()
    for name in call.operands:
        client.check_name(name)  # check every name before asking anything
    code = 0
    asked: list[Requested] = []
    for name in dict.fromkeys(call.operands):
        try:
            done = ask(client, name, kind, by=user, reason=reason)
        except Refused as error:
            say(f"bastion: {plain(error)}")
            code = error.exit_code
            continue
        asked.append(done)
        say(_text(done))
    if any(not each.already for each in asked):
        warn_if_no_daemon(client, target)
    if call.json:
        emit_json([{"name": d.name, "uid": d.uid, "kind": d.kind.value, "already": d.already} for d in asked])
    return code


def _text(done: Requested) -> str:
    if done.already:
        return f"{done.name} is already held" if done.kind is RequestKind.HOLD else f"{done.name} is not held"
    text = f"{_DOING[done.kind]} {done.name}"
    if done.submitter:
        text += f", a job of {plain(done.submitter)}, if you are an admin: bastion history {done.name}"
    return text


HOLD = Command(
    summary="Keeps jobs from starting.",
    usage="JOB... [--reason=TEXT]",
    details="""A held job keeps its place and does not start; `bastion why` says who holds it. A running job goes on,
        and is not started again after an eviction or the loss of a host. The request applies at the next poll.

        Exits with 0 if all jobs are being held, and with 64 if one does not exist or has already ended.""",
    examples=("bastion hold train-1", "bastion hold train-1 train-2 --reason='wrong data'"),
    operands=(1, None),
    completes="live",
    takes_output=True,
    define=_define,
    run=lambda call: _run(call, RequestKind.HOLD),
)

RELEASE = Command(
    summary="Lets held jobs start.",
    usage="JOB...",
    details="""The opposite of `bastion hold`. The job starts when its turn comes.

        Exits with 0 if all jobs are being released, and with 64 if one does not exist or has already ended.""",
    examples=("bastion release train-1",),
    operands=(1, None),
    completes="live",
    takes_output=True,
    run=lambda call: _run(call, RequestKind.RELEASE),
)

REQUEUE = Command(
    summary="Stops running jobs and queues them again.",
    usage="JOB... [--reason=TEXT]",
    details="""The job gets SIGTERM and a grace period, as for an eviction, and waits again, at the place that it had.
        It may start again at once; hold it first if it should not. This counts neither as a failed try nor as a lost
        attempt.

        Exits with 0 if all jobs are being requeued, and with 64 if one does not exist or does not run.""",
    examples=("bastion requeue train-1", "bastion requeue train-1 --reason='a slow host'"),
    operands=(1, None),
    completes="live",
    takes_output=True,
    define=_define,
    run=lambda call: _run(call, RequestKind.REQUEUE),
)
