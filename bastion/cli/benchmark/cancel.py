"""`bastion benchmark cancel RUN`: end a run; its tear-down follows."""

from __future__ import annotations

from bastion.cli.benchmark import runs
from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client, warn_if_no_daemon
from bastion.cli.output import emit_json, say
from bastion.core import plurals
from bastion.core.errors import Refused
from bastion.user_config.user import default_user


def _run(call: Invocation) -> int:
    from bastion.benchmark import documents
    from bastion.benchmark.finish import live_jobs
    from bastion.client.jobs.groups import cancel_all

    client, target = open_client(call)
    name, run = runs.find(client, call.operands[0])
    matrix = documents.read_matrix(client.store, name, run)
    user = default_user()
    # The finisher first: should this command be interrupted, it cancels the others.
    cancelled = [
        each.name
        for jobs in ([matrix.finisher], sorted(live_jobs(client, matrix)))
        for each in cancel_all(client, jobs, by=user)
    ]
    if not cancelled:
        raise Refused(f"the run {name}/{run} has already ended, or is being torn down; there is nothing to cancel")
    say(f"cancelling {plurals.count(len(cancelled), 'job')} of {name}/{run}; the tear-down follows")
    warn_if_no_daemon(client, target)
    if call.json:
        emit_json({"run": f"{name}/{run}", "cancelled": cancelled})
    return 0


CANCEL = Command(
    summary="Cancels a run: all of its jobs end, its environment is torn down, and what there is gets a report.",
    usage="RUN",
    details="""RUN is NAME/RUN as bastion benchmark run printed it, or NAME for the newest run.

        Exits with 64 if there is no such run, or if it has ended.""",
    examples=("bastion benchmark cancel matmul", "bastion benchmark cancel matmul/20260102T030405Z-0123abcd"),
    operands=(1, 1),
    takes_output=True,
    run=_run,
)
