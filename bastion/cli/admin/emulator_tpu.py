"""`bastion emulator tpu`: the Cloud TPU API on this machine, in the foreground.

Layer: cli. What there is to know of the emulator is in `bastion.emulators.tpu`; this is what a user sees of it.
"""

from __future__ import annotations

from pathlib import Path

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.target import bastion_home
from bastion.core.errors import BastionError

_PORT_MAX = 65535


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "state_dir",
        None,
        "The folder for everything that it keeps (default: $BASTION_HOME/emulator-tpu).",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "port",
        0,
        "gRPC port on 127.0.0.1; 0: the last one if it is free, else any.",
        0,
        _PORT_MAX,
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "capacity",
        [],
        "What exists: ZONE/TYPE=NODES or ZONE/FAMILY=UNITS, for example us-central2-b/v4-8=2 or us-central2-b/v4=64. "
        "What is not named has no limit; repeatable.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "quota",
        [],
        "What the project may hold: REGION/FAMILY=UNITS, for example us-central2/v4=64; repeatable.",
        flag_values=values,
    )
    for name, default, what in (
        ("create_seconds", 0.0, "How long every creation of a node takes before its hosts boot."),
        ("wait_seconds", 0.0, "How long every queued resource waits for resources at least."),
        ("notice_seconds", 30.0, "Between the notice of a pre-emption or a maintenance and the end of the hosts."),
        ("grace_seconds", 5.0, "Between SIGTERM and SIGKILL when hosts end."),
        ("fault_seconds", 30.0, "What goes wrong with a ready node by chance does so within this time."),
    ):
        flags.DEFINE_float(name, default, what, 0.0, flag_values=values)
    flags.DEFINE_bool("no_boot", False, "Nodes have no hosts: they become READY and nothing runs.", flag_values=values)
    flags.DEFINE_multi_string(
        "fault",
        [],
        "What goes wrong by chance, KIND:RATE with a rate from 0 to 1: stockout and hang of creations; preempt (spot), "
        "maintenance, crash and silent-crash of ready nodes; unavailable, throttled and lost-reply of calls; "
        "repeatable.",
        flag_values=values,
    )
    flags.DEFINE_integer("fault_seed", 0, "Decides which nodes and calls the rates hit.", flag_values=values)
    flags.DEFINE_integer("hosts_max", 16, "Most hosts of one node.", 1, flag_values=values)


def _run(call: Invocation) -> int:
    from bastion.emulators.state_folder import EmulatorRunning
    from bastion.emulators.tpu.address import locate
    from bastion.emulators.tpu.capacity import parse_limits
    from bastion.emulators.tpu.fault_plan import FaultPlan, parse_rates
    from bastion.emulators.tpu.server import EmulatorSettings
    from bastion.emulators.tpu.serving import serve

    given = call.flags
    folder = Path(given.state_dir).expanduser() if given.state_dir else bastion_home() / "emulator-tpu"
    settings = EmulatorSettings(
        state_dir=folder,
        port=given.port,
        hosts_max=given.hosts_max,
        grace_seconds=given.grace_seconds,
        create_seconds=given.create_seconds,
        wait_seconds=given.wait_seconds,
        notice_seconds=given.notice_seconds,
        boot=not given.no_boot,
        exists=parse_limits(given.capacity),
        quota=parse_limits(given.quota),
        plan=FaultPlan(rates=parse_rates(given.fault), seed=given.fault_seed, seconds=given.fault_seconds),
    )
    try:
        serve(settings, say=lambda line: print(line, flush=True))
    except EmulatorRunning as error:
        running = locate(folder)
        if running is None:  # it is just being started, or ended
            raise
        raise _served(folder, running.process.pid, running.endpoint) from error
    return 0


def _served(folder: Path, pid: int, endpoint: str) -> BastionError:
    return BastionError(
        f"{folder} is served already, by process {pid} at {endpoint}; use it, end it, or choose another folder with "
        "--state_dir"
    )


TPU = Command(
    summary="Serves the Cloud TPU API (v2) on this machine, in the foreground until SIGTERM or Ctrl-C.",
    usage="[--state_dir=DIR] [--port=N] [--capacity=ZONE/TYPE=N ...] [--fault=KIND:RATE ...] [--no_boot]",
    details=(
        "For whoever tests against Cloud TPU without a cloud account: nodes, queued resources and long-running "
        "operations with their states and errors, through the unmodified google-cloud-tpu client. A node's hosts are "
        "processes that run its startup script, each with a metadata server of its own. It prints how to point a "
        "client at it.\n\n"
        "Faults can be asked for while it runs, by files in DIR/faults; DIR/events.jsonl tells what happened. The end "
        "of the emulator is the end of all its nodes. The reference's page on the emulator has all of it."
    ),
    examples=(
        "bastion emulator tpu --capacity=us-central2-b/v4-8=2 --create_seconds=20 --no_boot",
        "bastion emulator tpu --state_dir=/tmp/tpu --fault=preempt:0.2 --fault=lost-reply:0.05 --fault_seed=1",
    ),
    takes_target=False,
    define=_define,
    run=_run,
)
