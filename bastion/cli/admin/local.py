"""`bastion local up|down|status`: the bastion on this machine (`bastion.wiring.local`)."""

from __future__ import annotations

from collections.abc import Callable

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, say
from bastion.core.errors import Refused
from bastion.user_config.user import default_user
from bastion.user_config.user_file import bastion_home
from bastion.wiring.local import down, status, up
from bastion.wiring.local_home import LocalHome
from bastion.wiring.local_kubernetes import DEFAULT_POOLS, ClusterOptions
from bastion.wiring.roots import Root


def ensure_up(notify: Callable[[str], None], *, cluster: ClusterOptions | None = None) -> Root:
    """Start the local bastion if it is not running; return its ROOT."""
    return up(LocalHome(bastion_home()), user=default_user(), say=notify, cluster=cluster)


def _define_up(values: flags.FlagValues) -> None:
    flags.DEFINE_bool(
        "kubernetes",
        False,
        "Also have an emulated Kubernetes cluster, from now on; jobs of its types run there.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "kueue",
        None,
        "Let Kueue decide on that cluster, by the quota file.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "pool",
        [],
        "Node pools of the cluster, as for `bastion emulator kubernetes` (default: those that it has, else "
        f"{' '.join(DEFAULT_POOLS)}); repeatable.",
        flag_values=values,
    )


def _up(call: Invocation) -> int:
    if call.flags.pool and not call.flags.kubernetes:
        raise Refused("--pool is for the cluster that --kubernetes adds; add --kubernetes")
    if call.flags.kueue is not None and not call.flags.kubernetes:
        raise Refused("--kueue is for the cluster that --kubernetes adds; add --kubernetes")
    if call.flags.kubernetes:
        from bastion.emulators.kubernetes.controllers.nodes import Pool

        for pool in call.flags.pool:
            Pool.parse(pool)
    cluster = ClusterOptions(pools=call.flags.pool, kueue=call.flags.kueue) if call.flags.kubernetes else None
    root = ensure_up(say, cluster=cluster)
    say(f"the local bastion is up; its bucket is {root.url}")
    return 0


def _down(_: Invocation) -> int:
    home = LocalHome(bastion_home())
    before = status(home)
    down(home, say=say)
    if not before.processes:
        say("the local bastion was not running")
    else:
        say(f"the local bastion is down; its bucket remains in {home.root.url}")
    return 0


def _status(call: Invocation) -> int:
    found = status(LocalHome(bastion_home()))
    if call.json:
        document = {
            "up": found.up,
            "root": found.root,
            "daemon_pid": found.daemon.pid if found.daemon else None,
            "emulator": found.emulator.endpoint if found.emulator else None,
            "emulator_pid": found.emulator.process.pid if found.emulator else None,
            "kubernetes": found.kubernetes.server if found.kubernetes else None,
            "kubernetes_pid": found.kubernetes.process.pid if found.kubernetes else None,
            "storage": found.storage.url if found.storage else None,
            "storage_pid": found.storage.process.pid if found.storage else None,
        }
        emit_json(document)
    else:
        print(f"root      {found.root}")
        print(f"daemon    {f'process {found.daemon.pid}' if found.daemon else 'not running'}")
        where = (
            f"process {found.emulator.process.pid} at {found.emulator.endpoint}" if found.emulator else "not running"
        )
        print(f"emulator  {where}")
        if found.kubernetes is not None:
            print(f"cluster   process {found.kubernetes.process.pid} at {found.kubernetes.server}")
        where = f"process {found.storage.process.pid} at {found.storage.url}" if found.storage else "not running"
        print(f"storage   {where}")
    return 0 if found.up else 1


_ABOUT = "All local files are in $BASTION_HOME (default: bastion in the XDG data folder, ~/.local/share/bastion)."

UP = Command(
    summary="Starts the bastion on this machine if it is not running, and waits until it is ready.",
    usage="[--kubernetes [--pool=INSTANCE_TYPE=COUNT ...] [--kueue]]",
    details=f"""`launch` and `submit` do this by themselves. It stops after an hour without jobs.

        With --kubernetes it has an emulated cluster, too: config/daemon.toml sends the types of its node pools there,
        and the others to the emulated Cloud TPU. A config/daemon.toml of your own stays as it is. With --kueue, Kueue
        decides on that cluster, by queues that each `local up` makes of the quota file. {_ABOUT}""",
    examples=("bastion local up", "bastion local up --kubernetes --pool=v4-8=4 --pool=v5litepod-16=2"),
    define=_define_up,
    takes_target=False,
    run=_up,
)
DOWN = Command(
    summary="Stops the bastion on this machine, its emulator and everything they run.",
    usage="",
    details=f"The bucket remains. The next `bastion local up` restarts jobs that were running. {_ABOUT}",
    examples=("bastion local down",),
    takes_target=False,
    run=_down,
)
STATUS = Command(
    summary="Shows which parts of the local bastion are running; exits with 1 if its daemon is not.",
    usage="[--output=json]",
    details=_ABOUT,
    examples=("bastion local status",),
    takes_target=False,
    takes_output=True,
    run=_status,
)
