"""The environment of the user's command, a pure function of what the host knows.

Three layers, later ones win: the agent's environment without its internals, the order's variables, and the variables
set here. On an emulated slice they make JAX on CPU look like a slice: `jax.devices()` shows all devices of all hosts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bastion.agent import rendezvous
from bastion.agent.command import stacks
from bastion.agent.identity import HostIdentity
from bastion.agent.sidecar.place import ProxyPlace, client_variables
from bastion.core.bucket import keys, outputs
from bastion.core.bucket.keys import Run
from bastion.core.bucket.markers import COMMAND_MARKER
from bastion.core.bucket.protocol import Order
from bastion.core.encryption.client_environment import EMULATOR, GCSFS_GRPC

VM_MARKER = "BASTION_VM"
EMULATED_TPU = "BASTION_EMULATED_TPU"
STATE_DIR = "BASTION_STATE_DIR"
BOOT_ID = "BASTION_EMULATED_BOOT_ID"
# The folder with the keys of Secrets of Kubernetes that are mounted for the job.
SECRETS_DIR = "BASTION_SECRETS_DIR"
# Of the startup script and the agent in a pod; see `bastion.agent.pod`.
POD_VARIABLES = (
    "BASTION_AGENT",
    "BASTION_AGENT_DIR",
    "BASTION_AGENT_FILE",
    "BASTION_INPUT_CACHE",
    "BASTION_NODE_NAME",
    "BASTION_PEERS",
    "BASTION_POD_IP",
    "BASTION_POD_NAME",
    "BASTION_POD_UID",
    SECRETS_DIR,
    "BASTION_SECRET_VARIABLES",
    "BASTION_SLICE_INDEX",
    "BASTION_TERMINATION_LOG",
    "BASTION_WORKER",
)
# The agent's own; not for a command.
_INTERNAL = (STATE_DIR, BOOT_ID, *POD_VARIABLES)
# For commands that have a user of their own on the bastion's host.
_LISTED = frozenset(
    {
        *("PATH", "LANG", "TZ"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    }
)
# Where the slices of one job meet; other launchers use the same port.
MEGASCALE_PORT = 8080
# With fewer threads per emulated device collectives deadlock: a blocked one holds a thread of the pool.
_THREADS_PER_DEVICE = 8

SLICE_HOOK = Path(__file__).parent / "slice_hook"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnvironment:
    """The command's variables, the order's names that they override, and notes for the job's log."""

    variables: dict[str, str]
    overridden: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What the host found out about itself and this attempt.

    Attributes:
        marker: Value of `BASTION_COMMAND`, which identifies all processes of the command.
        preempt_file: Appears when the command is asked to stop; holds the reason.
        checkpoint_file: The command touches it after each save; it does not exist before.
        step_file: The command keeps its last step in it; it does not exist before.
        results_file: The command writes what it measures into it; it does not exist before.
        coordinator: `host:port` of host 0 of slice 0, from the claim; may be empty.
        emulated: Whether the host is a process group of this machine.
        interpreter: The Python that the command finds as `python3`.
        output_dir: Absolute path of the folder whose content is stored; may be empty.
        hosts: Addresses of the job's hosts with GPUs by their numbers; empty if there is one, or they are unknown.
        hostfile: File with the same, for MPI.
        proxy: The storage proxy that the command's clients must use.
        user: Name of the user that the command runs as, if that is not the agent's; then it has the folders `home` and
            `temporary`.
    """

    marker: str
    preempt_file: str
    checkpoint_file: str
    step_file: str
    results_file: str
    coordinator: str
    emulated: bool
    cpus: int
    interpreter: str
    output_dir: str = ""
    hosts: tuple[str, ...] = ()
    hostfile: str = ""
    proxy: ProxyPlace | None = None
    user: str = ""
    home: str = ""
    temporary: str = ""


def own_variables(base: Mapping[str, str]) -> dict[str, str]:
    """The agent's own environment without its internals, and without secrets: a job asks for those by name."""
    hidden = {*_INTERNAL, *base.get("BASTION_SECRET_VARIABLES", "").split(",")}
    return {name: value for name, value in base.items() if name not in hidden}


def _listed_variables(base: Mapping[str, str]) -> dict[str, str]:
    """Of the agent's own environment, what every command needs: nothing else, since any other may be a secret."""
    return {name: value for name, value in base.items() if name.upper() in _LISTED or name.startswith("LC_")}


def command_environment(
    base: Mapping[str, str],
    order: Order,
    identity: HostIdentity,
    facts: HostFacts,
    *,
    secrets: Mapping[str, str] = MappingProxyType({}),
) -> CommandEnvironment:
    """Make the command's environment. `secrets`: the values of `order.secrets`."""
    # The bastion's host has the daemon's settings; other hosts have what jobs need.
    variables = own_variables(base) if not (facts.user and identity.on_bastion) else _listed_variables(base)
    # Unbuffered by default: Python output shows at once, and survives a kill.
    variables["PYTHONUNBUFFERED"] = "1"
    if facts.user:
        variables = _of_user(variables, facts)
    variables.update(order.env)
    variables.update(secrets)
    if order.stuck_after_seconds:
        variables["PYTHONPATH"] = _before(stacks.HOOK, variables.get("PYTHONPATH", ""))
    if EMULATOR in variables:
        # Such an endpoint does not answer gRPC.
        variables.setdefault(GCSFS_GRPC, "false")
    ours = _bastion_variables(order, identity, facts)
    if VM_MARKER in base:
        # Identifies all processes of this host's command.
        ours[VM_MARKER] = base[VM_MARKER]
    arguments = identity.arguments
    if identity.gpus:
        ours |= rendezvous.variables(
            identity, facts.coordinator, hosts=facts.hosts, hostfile=facts.hostfile, emulated=facts.emulated
        )
        variables["PYTHONPATH"] = _before(rendezvous.JAX_HOOK, variables.get("PYTHONPATH", ""))
    elif arguments.accelerator_type:
        ours.update(_slice_variables(identity, facts))
    if arguments.accelerator_type and facts.emulated:
        ours.update(_emulated_variables(identity, facts))
        # Appended: the user's own flags stay in force.
        flag = f"--xla_force_host_platform_device_count={arguments.devices_per_host}"
        variables["XLA_FLAGS"] = " ".join(filter(None, (variables.get("XLA_FLAGS", ""), flag)))
        if not identity.gpus:
            variables["PYTHONPATH"] = _before(SLICE_HOOK, variables.get("PYTHONPATH", ""))
    if facts.emulated or not arguments.accelerator_type:
        # The command's `python3` is then the one that has jax.
        own = str(Path(facts.interpreter).parent)
        variables["PATH"] = os.pathsep.join(filter(None, (own, variables.get("PATH", os.defpath))))
    given = {**order.env, **secrets}
    notes = tuple(filter(None, [rendezvous.note(identity, given)]))
    if facts.proxy is not None:
        clients = client_variables(
            facts.proxy, variables, identity, emulated=facts.emulated, coordinator=facts.coordinator
        )
        ours |= clients.ours
        variables = {name: value for name, value in variables.items() if name not in clients.gone} | clients.others
        notes += clients.notes
    overridden = tuple(sorted(name for name in ours if name in given and given[name] != ours[name]))
    return CommandEnvironment(variables=variables | ours, overridden=overridden, notes=notes)


def _of_user(variables: Mapping[str, str], facts: HostFacts) -> dict[str, str]:
    """The variables of another user: its own folders in the place of the agent's."""
    others = {name: value for name, value in variables.items() if not name.startswith("XDG_")}
    return others | {
        "HOME": facts.home,
        "TMPDIR": facts.temporary,
        "USER": facts.user,
        "LOGNAME": facts.user,
        "SHELL": "/bin/bash",
    }


def _before(folder: Path, path: str) -> str:
    return os.pathsep.join(filter(None, (str(folder), path)))


def _bastion_variables(order: Order, identity: HostIdentity, facts: HostFacts) -> dict[str, str]:
    run = Run.parse(identity.arguments.run)
    variables = {} if run is None else {"BASTION_OUTPUT_URL": _shared_outputs(order, identity, run)}
    if order.stuck_after_seconds:
        variables["BASTION_STACKS_SIGNAL"] = str(int(stacks.SIGNAL))
    if facts.output_dir:
        variables["BASTION_OUTPUT_DIR"] = facts.output_dir
        variables["BASTION_TENSORBOARD_DIR"] = f"{facts.output_dir}/{outputs.TENSORBOARD}"
    return variables | {
        "BASTION_JOB": identity.arguments.job,
        "BASTION_RUN": identity.arguments.run,
        "BASTION_ATTEMPT": "" if run is None else str(run.attempt),
        "BASTION_TRY": str(order.try_number),
        "BASTION_USER_ID": order.user_id,
        "BASTION_PROJECT_ID": order.project_id,
        "BASTION_HOST_INDEX": str(identity.host),
        "BASTION_NUM_HOSTS": str(identity.num_hosts),
        "BASTION_PREEMPT_FILE": facts.preempt_file,
        "BASTION_CHECKPOINT_FILE": facts.checkpoint_file,
        "BASTION_STEP_FILE": facts.step_file,
        "BASTION_RESULTS_FILE": facts.results_file,
        COMMAND_MARKER: facts.marker,
    }


def _shared_outputs(order: Order, identity: HostIdentity, run: Run) -> str:
    return f"{order.output_to or identity.arguments.root}/{keys.output_shared(identity.arguments.job, run.uid)}"


def _slice_variables(identity: HostIdentity, facts: HostFacts) -> dict[str, str]:
    variables = {"TPU_WORKER_ID": str(identity.worker), "TPU_WORKER_HOSTNAMES": ",".join(identity.peers)}
    if identity.arguments.num_slices > 1:
        host = facts.coordinator.rpartition(":")[0]
        variables |= {
            # The platform's value first: programs that ask it directly must find the same.
            "MEGASCALE_COORDINATOR_ADDRESS": identity.slices_address or f"{host}:{MEGASCALE_PORT}",
            "MEGASCALE_NUM_SLICES": str(identity.arguments.num_slices),
            "MEGASCALE_SLICE_ID": str(identity.slice_index),
        }
    return variables | dict(identity.tpu_variables)


def _emulated_variables(identity: HostIdentity, facts: HostFacts) -> dict[str, str]:
    """Let JAX on CPU look like the hosts' devices."""
    devices = identity.arguments.devices_per_host
    port = facts.coordinator.rpartition(":")[2]
    variables = {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PJRT_NPROC": str(max(facts.cpus, _THREADS_PER_DEVICE * devices)),
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        # JAX binds every address by default, so two local slices on one port would connect to each other.
        "JAX_COORDINATOR_BIND_ADDRESS": facts.coordinator,
    }
    if identity.gpus:
        return variables
    variables |= {
        # For the hook, which joins the slice at the first use of a device.
        "BASTION_COORDINATOR_ADDRESS": facts.coordinator,
        "BASTION_NUM_PROCESSES": str(identity.num_hosts),
        "BASTION_PROCESS_ID": str(identity.host),
        # For the command's own jax.distributed.initialize() without arguments.
        "JAX_FORCE_TPU_INIT": "1",
        "JAX_COORDINATOR_PORT": port,
    }
    if identity.arguments.num_slices == 1:
        # JAX otherwise asks the metadata server for them.
        variables |= {
            "MEGASCALE_NUM_SLICES": "1",
            "MEGASCALE_SLICE_ID": "0",
            "MEGASCALE_COORDINATOR_ADDRESS": "",
        }
    return variables
