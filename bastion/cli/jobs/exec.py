"""`bastion exec JOB [-- COMMAND...]`: a command or a shell on a host of a running job."""

from __future__ import annotations

import sys
from functools import partial

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.client.jobs.job_requests import ask
from bastion.core.errors import Refused
from bastion.core.model.job_request import RequestKind
from bastion.core.model.running_hosts import running_host
from bastion.user_config.user import default_user
from bastion.wiring.host_entry import host_entry


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_integer(
        "worker", 0, "Number of the host, from 0, over all replicas.", lower_bound=0, flag_values=values
    )
    flags.DEFINE_multi_string(
        "gcloud_flag",
        [],
        "For a Cloud TPU host: a flag of `gcloud compute tpus tpu-vm ssh`, such as --gcloud_flag=--internal-ip.",
        flag_values=values,
    )


def _run(call: Invocation) -> int:
    if call.command is not None and not call.command:
        raise Refused("there is no command after --; name one, or leave out -- for a shell")
    client, target = open_client(call)
    info = client.require(call.operands[0])
    if info.record is None:
        raise Refused(
            f"the job {info.name!r} does not run ({info.stage.value}); only hosts of a running job can be entered "
            f"(bastion why {info.name})"
        )
    host = running_host(info.record, call.flags.worker)
    entry = host_entry(target.root, host, gcloud_flags=call.flags.gcloud_flag)
    # Who enters is written down before he can do anything.
    note = partial(ask, client, info.name, RequestKind.EXEC, by=default_user(), worker=call.flags.worker)
    sys.stdout.flush()
    return entry.enter(host, call.command or (), begin=note)


EXEC = Command(
    summary="Runs a command on a host of a running job; without a command, a shell.",
    usage="JOB [--worker=N] [--gcloud_flag=FLAG]... [-- COMMAND...]",
    details="""The command runs as the user of the job's command, in its environment and its working folder. It has
        this terminal, and ends at the latest with the job's command. The exit code is the command's own; 64: refused;
        126 and 127: the command could not be run or was not found; 128 + N: signal N ended it.

        On this machine, and on the bastion's VM for jobs without a slice, the command starts beside the job's. On a
        Cloud TPU node, gcloud logs in, and sudo there becomes the command's user. Of a pod in a cluster, or of a job on
        the bastion's VM elsewhere, it says what to type instead.

        `bastion history JOB` says who entered which worker.""",
    examples=(
        "bastion exec train-1",
        "bastion exec train-1 --worker=1 -- nvidia-smi",
    ),
    operands=(1, 1),
    completes="live",
    takes_command=True,
    define=_define,
    run=_run,
)
