"""`bastion rerun JOB`: a job again, the same or changed."""

from __future__ import annotations

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.jobs import change_flags
from bastion.cli.jobs.secret_warning import warn_of
from bastion.cli.jobs.submitted import check_quota, define_check, report_submitted, wait_for_submitted
from bastion.client.jobs import dependencies
from bastion.client.jobs.edit import again, is_stored
from bastion.core.bucket import keys
from bastion.core.errors import Refused
from bastion.user_config.user import default_user


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("name", None, "Name of the new job. Default: the same.", flag_values=values)
    flags.DEFINE_string("user_id", None, "User of the new job. Default: yours.", flag_values=values)
    change_flags.define(values)
    define_check(values)
    flags.DEFINE_boolean(
        "wait", False, "Show progress and output until the job ends, and return its exit code.", flag_values=values
    )


def _run(call: Invocation) -> int:
    changes = change_flags.read(call)
    user = call.flags.user_id or default_user()
    client, target = open_client(call)
    name = call.operands[0]
    new_name = name if call.flags.name is None else call.flags.name
    keys.check_job_name(new_name, bastion=client.bastion, new=True)
    spec = again(client, name, changes, new_name=new_name, user_id=user)
    if not is_stored(client, spec.code_asset_path):
        raise Refused(
            f"the code of {name!r}, {spec.code_asset_path}, is not in the bucket any more; launch the job anew from "
            "the folder with its code"
        )
    warn_of(spec)
    dependencies.check(client, spec)
    check_quota(call, client, spec)
    submitted = client.submit(spec)
    report_submitted(call, client, target, submitted, waiting=call.flags.wait)
    return wait_for_submitted(call, client, target, submitted) if call.flags.wait else 0


RERUN = Command(
    summary="Runs a job again, the same or changed.",
    usage="JOB [--name=NAME] [--priority=N] [--env=NAME=VALUE ...] ... [--wait] [-- COMMAND...]",
    details="""The new job has the spec of the newest job of that name: command, code, variables, inputs, slices. It is
        yours, and charged to the same project unless --project says otherwise. With its old name the job must have
        ended; with --name it may be live.

        --wait and the exit codes are those of `bastion launch`.""",
    examples=(
        "bastion rerun train-1",
        "bastion rerun train-1 --name=train-2 --env=LR=0.1 --wait",
        "bastion rerun train-1 -- python3 train.py --steps=10",
    ),
    operands=(1, 1),
    completes="jobs",
    takes_command=True,
    takes_output=True,
    define=_define,
    run=_run,
)
