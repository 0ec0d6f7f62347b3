"""Facts about a host that must be equal on both sides of a comparison, without asking any process."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from bastion.agent.identity import HostIdentity
from bastion.core.bucket.protocol import Order
from bastion.core.bucket.results import Environment
from bastion.core.secret_signs import secret_variable

# Variables that change how fast or how exactly a program computes.
_MATTER = re.compile(
    r"XLA_.+|LIBTPU_INIT_ARGS|TPU_.*(?:ARGS|FLAGS|TOPOLOGY|BOUNDS)|PJRT_.+"
    r"|(?:CUBLAS|CUDA|CUDNN|GLOO|GOMP|JAX|KMP|MALLOC|MKL|NCCL|NUMEXPR|NVIDIA|OMP|OPENBLAS|PYTORCH|TF|TORCH)_.+"
)
# These of them differ from run to run or from host to host, and change nothing.
_OF_THE_RUN = re.compile(r"JAX_(?:COORDINATOR_.+|PROCESS_ID|LOCAL_.+)|TF_CONFIG|NVIDIA_VISIBLE_DEVICES")
# A shorter value is in nearly every other one.
_SECRET_MIN_CHARS = 4
_VARIABLES_MAX = 100
_VALUE_MAX_CHARS = 1000
_NAME_MAX_CHARS = 200
_FACT_MAX_BYTES = 64 * 1024

COMMIT = "BASTION_COMMIT"
# Set in pods by the manifest.
NODE_NAME = "BASTION_NODE_NAME"


def of_host(
    identity: HostIdentity,
    order: Order,
    variables: Mapping[str, str],
    *,
    environ: Mapping[str, str],
    emulated: bool,
    run_folder: Path,
    root: Path = Path("/"),
) -> Environment:
    """Gather what is known without the command's Python.

    Args:
        variables: The command's.
        environ: The agent's own.
        run_folder: The run's folder on this host; what names it is not of this run alone.
        root: Of the file system; for tests.
    """
    arguments = identity.arguments
    accelerator, driver = arguments.accelerator_type, ""
    if emulated and accelerator:
        accelerator = f"emulated {accelerator}"
    elif identity.gpus:
        accelerator = _gpu(root) or accelerator
        driver = _first_line(root / "sys/module/nvidia/version")
    return Environment(
        processor=f"{_processor(root)}, {len(os.sched_getaffinity(0))} CPUs",
        accelerator=accelerator,
        accelerators=(identity.gpus or arguments.devices_per_host) * identity.num_hosts if accelerator else 0,
        driver=driver,
        place=_place(identity, environ, emulated=emulated),
        hosts=identity.num_hosts,
        instance_type=_instance_type(identity),
        commit=variables.get(COMMIT, "")[:_NAME_MAX_CHARS],
        bundle=order.code_sha256,
        variables=that_matter(variables, secret={*order.secrets}, run_folder=run_folder),
    )


def that_matter(variables: Mapping[str, str], *, secret: set[str], run_folder: Path) -> dict[str, str]:
    """Variables that change results. `secret`: names of those whose values nobody may see, wherever they stand."""
    hidden = [value for name in secret if len(value := variables.get(name, "")) >= _SECRET_MIN_CHARS]
    found = {}
    for name, value in sorted(variables.items()):
        if not _MATTER.fullmatch(name) or _OF_THE_RUN.fullmatch(name):
            continue
        if name in secret or secret_variable(name, value) or any(text in value for text in hidden):
            continue
        found[name[:_NAME_MAX_CHARS]] = value.replace(str(run_folder), "RUN")[:_VALUE_MAX_CHARS]
    return dict([*found.items()][:_VARIABLES_MAX])


def _instance_type(identity: HostIdentity) -> str:
    name = identity.arguments.accelerator_type
    prefix = "" if not name or name.startswith("tpu") else "gpu-" if identity.gpus else "tpu-"
    return f"{prefix}{name}"


def _place(identity: HostIdentity, environ: Mapping[str, str], *, emulated: bool) -> str:
    """`zone/machine`. A VM was made for this job alone: which machine it got is this job's luck, so none is named."""
    machine = environ.get(NODE_NAME, "")
    if emulated or identity.on_bastion:
        machine = platform.node()
    return "/".join(filter(None, (identity.arguments.zone or "", machine)))[:_NAME_MAX_CHARS]


def _processor(root: Path) -> str:
    found = re.search(r"^model name\s*: *(.+)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    return found[1].strip()[:_NAME_MAX_CHARS] if found else platform.machine()


def _gpu(root: Path) -> str:
    """The name of the first GPU, as NVIDIA's driver says it (its README: /proc/driver/nvidia)."""
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        found = re.search(r"^Model:\s*(.+)$", _text(path), re.MULTILINE)
        if found:
            return found[1].strip()[:_NAME_MAX_CHARS]
    return ""


def _first_line(path: Path) -> str:
    return _text(path).partition("\n")[0].strip()[:_NAME_MAX_CHARS]


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_FACT_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
