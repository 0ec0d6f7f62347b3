"""A host that is a pod: who it is, from its environment, and its termination message.

The exit code of the pod's container says only whether the host's last report is in the bucket: 0 it is, 64 this image
or manifest cannot work, anything else: the host failed. What the command exited with is in the report.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path

from bastion.agent.identity import HostIdentity
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import AgentArguments, HostPhase, Report
from bastion.core.errors import InvalidDocument

# Set by the manifest: AgentArguments as JSON, and what the downward API says about the pod.
ARGUMENTS = "BASTION_AGENT"
POD_UID = "BASTION_POD_UID"
POD_IP = "BASTION_POD_IP"
POD_NAME = "BASTION_POD_NAME"
SLICE_INDEX = "BASTION_SLICE_INDEX"
WORKER = "BASTION_WORKER"
# Host names of the slice's pods by worker number, separated by commas.
PEERS = "BASTION_PEERS"
INPUT_CACHE = "BASTION_INPUT_CACHE"
TERMINATION_LOG = "BASTION_TERMINATION_LOG"
# Set by GKE for multi-host TPU slices: its webhook and its device plugin.
PLATFORM_PEERS = "TPU_WORKER_HOSTNAMES"
PLATFORM_SLICES_ADDRESS = "MEGASCALE_COORDINATOR_ADDRESS"
_PLATFORM = (
    PLATFORM_PEERS,
    "TPU_WORKER_ID",
    PLATFORM_SLICES_ADDRESS,
    "MEGASCALE_NUM_SLICES",
    "MEGASCALE_SLICE_ID",
)

# Kubernetes cuts longer ones: MaxContainerTerminationMessageLength in pkg/kubelet/container/runtime.go.
TERMINATION_MESSAGE_MAX_BYTES = 4096

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


def read_identity(environ: Mapping[str, str]) -> HostIdentity:
    """Who this pod is. Raises InvalidDocument, which names the variable: it stays as it is as long as the pod lives."""
    try:
        arguments = protocol.read(AgentArguments, _required(environ, ARGUMENTS).encode())
    except InvalidDocument as error:
        raise InvalidDocument(f"{ARGUMENTS}: {error}") from error
    cache = environ.get(INPUT_CACHE, arguments.input_cache)
    arguments = arguments.model_copy(update={"slice_index": _number(environ, SLICE_INDEX), "input_cache": cache})
    address = _required(environ, POD_IP)
    try:
        ipaddress.ip_address(address)
    except ValueError as error:
        raise InvalidDocument(f"{POD_IP} is {address[:80]!r}, not an IP address") from error
    identity = HostIdentity(
        arguments=arguments,
        worker=_number(environ, WORKER),
        peers=_peers(environ, arguments, address),
        slices_address=environ.get(PLATFORM_SLICES_ADDRESS, ""),
        own_address=address,
        boot_id=_required(environ, POD_UID),
        tpu_variables={name: environ[name] for name in _PLATFORM if environ.get(name)},
    )
    _require_own_name(environ, identity)
    return identity


def ending_message(identity: HostIdentity, report: Report | None, *, stored: bool) -> str:
    """How this host ended, in one line for people who look at the pod."""
    who = f"worker {identity.worker}"
    if identity.arguments.num_slices > 1:
        who = f"slice {identity.slice_index}, {who}"
    if report is None:
        return f"{who} ended before the command started"
    if report.phase is HostPhase.EXITED:
        text = f"{who}: command exited with {report.exit_code}"
        text += f" ({report.message})" if report.message else ""
    else:
        code = f"; command exited with {report.exit_code}" if report.exit_code is not None else ""
        text = f"{who}: {report.message or report.error or report.phase.value}{code}"
    return text if stored else f"{text}; the report could not be stored"


def write_termination_message(environ: Mapping[str, str], text: str) -> None:
    """Leave a message for the pod's status. Without such a file, or if it cannot be written, do nothing."""
    path = environ.get(TERMINATION_LOG)
    if not path:
        return
    data = text.encode("utf-8", "replace")[:TERMINATION_MESSAGE_MAX_BYTES].decode("utf-8", "ignore")
    try:
        Path(path).write_text(data, "utf-8")
    except OSError:
        return


def _peers(environ: Mapping[str, str], arguments: AgentArguments, address: str) -> tuple[str, ...]:
    """The slice's hosts by worker number: the platform's list first, then the manifest's."""
    if not arguments.accelerator_type:
        return ()
    if arguments.hosts_per_slice == 1:
        return (address,)
    name = PLATFORM_PEERS if environ.get(PLATFORM_PEERS) else PEERS
    peers = tuple(part.strip() for part in _required(environ, name).split(","))
    if len(peers) != arguments.hosts_per_slice:
        raise InvalidDocument(f"{name} names {len(peers)} hosts, but the slice has {arguments.hosts_per_slice}")
    for peer in peers:
        if not _is_host(peer):
            raise InvalidDocument(f"{name}: {peer[:80]!r} is not a host name or IP address")
    return peers


def _require_own_name(environ: Mapping[str, str], identity: HostIdentity) -> None:
    """Raise InvalidDocument in someone's copy of the run's JobSet or pod: it is no host of the run.

    Job names their pods so: podGenerateNameWithIndex in pkg/controller/job/indexed_job_utils.go.
    """
    name = _required(environ, POD_NAME)
    run = identity.arguments.run
    own = f"{keys.gang(run)}-slice-{identity.slice_index}-{identity.worker}-"
    if not name.startswith(own):
        raise InvalidDocument(
            f"the pod {name[:80]} is a copy of a pod of run {run} and not a host of it; remove the bastion's "
            "labels, variables and command from the copy"
        )


def _is_host(text: str) -> bool:
    if _HOST_NAME.fullmatch(text):
        return True
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "").strip()
    if not value:
        raise InvalidDocument(f"the pod has no {name}; the manifest must set it")
    return value


def _number(environ: Mapping[str, str], name: str) -> int:
    text = _required(environ, name)
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise InvalidDocument(f"{name} is {text[:40]!r}, not a number")
    return int(text)
