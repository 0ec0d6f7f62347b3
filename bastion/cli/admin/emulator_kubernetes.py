"""`bastion emulator kubernetes`: a Kubernetes cluster on this machine (`bastion.emulators.kubernetes`), in the
foreground.
"""

from __future__ import annotations

from pathlib import Path

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.core.errors import BastionError
from bastion.user_config.user_file import bastion_home

_PORT_MAX = 65535


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "state_dir",
        None,
        "The folder for its state (default: $BASTION_HOME/emulator-kubernetes).",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "port",
        0,
        "HTTPS port on 127.0.0.1; 0: the previous one if it is free, else any.",
        0,
        _PORT_MAX,
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "pool",
        [],
        "Node pools of one slice each: INSTANCE_TYPE=COUNT, like v5litepod-16=2 or gpu-h100-8=2, or "
        "INSTANCE_TYPE=COUNT:spot; :eks and :generic instead of GKE's labels, for GPUs; repeatable.",
        flag_values=values,
    )
    flags.DEFINE_bool("kueue", False, "Have Kueue on the cluster, with its kinds but no queues.", flag_values=values)
    for name, default, what in (
        ("grace_seconds", 5.0, "Time between SIGTERM and SIGKILL of all pods when the emulator ends."),
        ("repair_seconds", 5.0, "Time from the end of a node to its successor."),
        ("image_backoff_seconds", 10.0, "Time between the first two attempts to pull an image."),
        ("fault_seconds", 30.0, "A random fault hits a running pod within this time; the period of the others."),
    ):
        flags.DEFINE_float(name, default, what, 0.0, flag_values=values)
    flags.DEFINE_integer(
        "notice_seconds",
        15,
        "Time between the notice of a random preemption and the end of the machine.",
        0,
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "fault",
        [],
        "Random faults, FAULT:RATE with a rate from 0 to 1: preempt (spot), node-lost, out-of-memory and image-error "
        "of pods; no-capacity, watch-cut and expired of periods; unavailable, throttled and lost-reply of requests; "
        "repeatable.",
        flag_values=values,
    )
    flags.DEFINE_integer("fault_seed", 0, "Random seed of the faults.", flag_values=values)


def _run(call: Invocation) -> int:
    from bastion.emulators.kubernetes.address import locate
    from bastion.emulators.kubernetes.controllers.nodes import Pool
    from bastion.emulators.kubernetes.fault_plan import FaultPlan, parse_rates
    from bastion.emulators.kubernetes.serving import serve
    from bastion.emulators.kubernetes.settings import EmulatorSettings
    from bastion.emulators.state_folder import EmulatorRunning

    given = call.flags
    folder = Path(given.state_dir).expanduser() if given.state_dir else bastion_home() / "emulator-kubernetes"
    settings = EmulatorSettings(
        state_dir=folder,
        port=given.port,
        pools=tuple(Pool.parse(text) for text in given.pool),
        repair_seconds=given.repair_seconds,
        close_grace_seconds=given.grace_seconds,
        image_backoff_seconds=given.image_backoff_seconds,
        notice_seconds=given.notice_seconds,
        kueue=given.kueue,
        plan=FaultPlan(rates=parse_rates(given.fault), seed=given.fault_seed, seconds=max(given.fault_seconds, 0.1)),
    )
    try:
        serve(settings, say=lambda line: print(line, flush=True))
    except EmulatorRunning as error:
        running = locate(folder)
        if running is None:  # it is starting or stopping
            raise
        raise BastionError(
            f"process {running.process.pid} already serves {folder} at {running.server}; use it, stop it, or choose "
            "another folder with --state_dir"
        ) from error
    return 0


KUBERNETES = Command(
    summary="Serves a Kubernetes API on this machine, in the foreground until SIGTERM or Ctrl-C.",
    usage="[--state_dir=DIR] [--port=N] [--pool=TYPE=COUNT[:eks][:spot] ...] [--kueue] [--fault=FAULT:RATE ...]",
    details=(
        "For tests against Kubernetes without a cluster: a subset of the API with JobSets, Jobs and pods, and node "
        "pools of TPUs and GPUs, labeled as on GKE. A pod's containers are processes of this machine, whatever their "
        "image; images below missing/, private/, bare/ and nopython/ show faults. What is not emulated is refused by "
        "name. On start it prints how to use kubectl.\n\n"
        "To cause faults while it runs, write files in DIR/faults. The output of pods is below DIR/logs. All pods end "
        "with the emulator. See docs/reference/emulator-kubernetes.md."
    ),
    examples=(
        "bastion emulator kubernetes --pool=v5litepod-16=2 --pool=v5p-16=1:spot",
        "bastion emulator kubernetes --pool=v5litepod-16=2 --kueue",
        "bastion emulator kubernetes --pool=v5p-16=2:spot --fault=preempt:0.2 --fault=lost-reply:0.02 --fault_seed=1",
    ),
    takes_target=False,
    define=_define,
    run=_run,
)
