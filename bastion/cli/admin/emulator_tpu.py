"""`bastion emulator tpu`: the Cloud TPU API on this machine (`bastion.emulators.tpu`), in the foreground."""

from __future__ import annotations

from pathlib import Path

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.core.errors import BastionError
from bastion.user_config.user_file import bastion_home
from bastion.wiring.daemon_extra import check_daemon_extra

_PORT_MAX = 65535


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "state_dir",
        None,
        "The folder for its state (default: $BASTION_HOME/emulator-tpu).",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "port",
        0,
        "gRPC port on 127.0.0.1; 0: the previous one if it is free, else any.",
        0,
        _PORT_MAX,
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "capacity",
        [],
        "Available capacity: ZONE/INSTANCE_TYPE=NODES or ZONE/RESOURCE_TYPE=UNITS, like us-central2-b/v4-8=2 or "
        "us-central2-b/v4=64. Anything else is unlimited; repeatable.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "quota",
        [],
        "The project's quota: REGION/RESOURCE_TYPE=UNITS, like us-central2/v4=64; repeatable.",
        flag_values=values,
    )
    for name, default, what in (
        ("create_seconds", 0.0, "Time to create a node, before its hosts boot."),
        ("wait_seconds", 0.0, "Minimum time that a queued resource waits."),
        ("notice_seconds", 30.0, "Time between the notice of a preemption or maintenance and the end of the hosts."),
        ("grace_seconds", 5.0, "Time between SIGTERM and SIGKILL when hosts end."),
        ("fault_seconds", 30.0, "A random fault hits a ready node within this time."),
    ):
        flags.DEFINE_float(name, default, what, 0.0, flag_values=values)
    flags.DEFINE_bool("no_boot", False, "Nodes become READY without hosts; nothing runs.", flag_values=values)
    flags.DEFINE_multi_string(
        "fault",
        [],
        "Random faults, FAULT:RATE with a rate from 0 to 1: stockout and hang of creations; preempt (spot), "
        "maintenance, crash and silent-crash of ready nodes; unavailable, throttled and lost-reply of calls; "
        "repeatable.",
        flag_values=values,
    )
    flags.DEFINE_integer("fault_seed", 0, "Random seed of the faults.", flag_values=values)
    flags.DEFINE_integer("hosts_max", 16, "Maximum number of hosts of one node.", 1, flag_values=values)


def _run(call: Invocation) -> int:
    check_daemon_extra("the emulated Cloud TPU")
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
        if running is None:  # it is starting or stopping
            raise
        raise _served(folder, running.process.pid, running.endpoint) from error
    return 0


def _served(folder: Path, pid: int, endpoint: str) -> BastionError:
    return BastionError(
        f"process {pid} already serves {folder} at {endpoint}; use it, stop it, or choose another folder with "
        "--state_dir"
    )


TPU = Command(
    summary="Serves the Cloud TPU API (v2) on this machine, in the foreground until SIGTERM or Ctrl-C.",
    usage="[--state_dir=DIR] [--port=N] [--capacity=ZONE/TYPE=N ...] [--fault=FAULT:RATE ...] [--no_boot]",
    details=(
        "For tests against Cloud TPU without a cloud account: nodes, queued resources and long-running operations with "
        "their states and errors, through the unmodified google-cloud-tpu client. A node's hosts are processes that "
        "run its startup script, each with its own metadata server. On start it prints how to configure a client.\n\n"
        "To cause faults while it runs, write files in DIR/faults; DIR/events.jsonl records what happened. All nodes "
        "end with the emulator. See docs/reference/emulator.md."
    ),
    examples=(
        "bastion emulator tpu --capacity=us-central2-b/v4-8=2 --create_seconds=20 --no_boot",
        "bastion emulator tpu --state_dir=/tmp/tpu --fault=preempt:0.2 --fault=lost-reply:0.05 --fault_seed=1",
    ),
    takes_target=False,
    define=_define,
    run=_run,
)
