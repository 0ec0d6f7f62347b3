"""`bastion edit JOB`: change a job that waits or runs."""

from __future__ import annotations

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.confirm import confirm
from bastion.cli.connect import open_client, warn_if_no_daemon
from bastion.cli.jobs import change_flags
from bastion.cli.jobs.secret_warning import warn_of
from bastion.cli.jobs.submitted import check_quota, define_check
from bastion.cli.output import emit_json, say
from bastion.client.jobs.edit import Changes, edit
from bastion.core.errors import Refused

# Of the JSON document.
_FORMAT = 1


def _define(values: flags.FlagValues) -> None:
    change_flags.define(values)
    define_check(values)
    flags.DEFINE_boolean(
        "yes", False, "Restart a running job without asking, if the change needs it.", flag_values=values
    )


def _run(call: Invocation) -> int:
    changes = change_flags.read(call)
    if changes == Changes():
        raise Refused("name what to change, for example --priority=1; see bastion edit --help")
    client, target = open_client(call)
    name = call.operands[0]
    ready = edit(client, name, changes)
    warn_of(ready.spec)
    check_quota(call, client, ready.spec)
    if ready.stops and not call.flags.yes:
        confirm(f"{name} runs, and this needs a restart ({ready.changed}); stop its attempt and run it again")
    submitted = client.submit(ready.spec)
    say(f"changing {name}: {ready.changed}" + ("; its attempt is stopped, and it is queued again" * ready.stops))
    warn_if_no_daemon(client, target)
    if call.json:
        document = {"name": name, "uid": submitted.uid, "version": ready.spec.version, "restarts": ready.stops}
        emit_json({"format": _FORMAT, **document, "changed": ready.changed})
    return 0


EDIT = Command(
    summary="Changes a job that waits or runs.",
    usage="JOB [--priority=N] [--project=PROJECT] [--max_wait=DURATION] [--max_run=DURATION] ... [-- COMMAND...]",
    details="""Writes the next version of the job's spec; only its submitter may. A waiting job keeps its place.

        A running job goes on if only --priority, --max_wait and --max_run change. Anything else is part of what runs,
        or of who pays for it: after a question, or with --yes, the attempt is stopped with the usual grace, and the job
        is queued again. `bastion history JOB` says what changed.

        Exits with 64 if there is no such job, it has ended, or it is like this already; with 2 without an answer.""",
    examples=(
        "bastion edit train-1 --priority=1",
        "bastion edit train-1 --max_run=none --max_wait=6h",
        "bastion edit train-1 --yes --env=LR=0.1 -- python3 train.py",
    ),
    operands=(1, 1),
    completes="live",
    takes_command=True,
    takes_output=True,
    define=_define,
    run=_run,
)
