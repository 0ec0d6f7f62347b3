"""From a pod's object to the plan of its supervisor: images, environment, commands and volumes resolved."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bastion.emulators.agents import AGENT_DIR, agents_folder
from bastion.emulators.kubernetes.kubelet import hide_python, images
from bastion.emulators.kubernetes.kubelet.environment import (
    Addresses,
    Fetch,
    command,
    hostname,
    spec_variables,
    tpu_variables,
)
from bastion.emulators.kubernetes.kubelet.pod_folder import CONTAINER_MARKER, ContainerPlan, PodFolder, PodPlan
from bastion.emulators.kubernetes.kubelet.settings import KubeletSettings
from bastion.emulators.kubernetes.kubelet.volumes import make_folders, mounts, project_secrets, volume_folders
from bastion.emulators.kubernetes.kubelet.workers import Workers
from bastion.emulators.loopback import METADATA_PORT
from bastion.emulators.markers import MARKER, inherited

Obj = dict[str, Any]

OOM_ANNOTATION = "emulator.bastion/oom-after-seconds"
_SYSTEM_PATH = ":".join(hide_python.FOLDERS)
_GRACE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The group that a pod shares a block of addresses with: its Job, or itself."""

    group: str
    index: int = 0
    size: int = 1


class Planner:
    """Makes plans, and the folders of pods with their volumes."""

    def __init__(self, settings: KubeletSettings, workers: Workers, fetch: Fetch) -> None:
        self._settings = settings
        self._workers = workers
        self._fetch = fetch

    def plan(self, pod: Obj, owner: Owner, addresses: Addresses, zone: str) -> PodPlan:
        """Raises ConfigError, OSError."""
        metadata, spec = pod["metadata"], pod["spec"]
        folder = self._workers.folder(metadata["uid"])
        for path in (folder.path, folder.volumes, folder.home):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        project_secrets(pod, volume_folders(pod, folder.volumes), self._fetch)
        first = [self._container(pod, each, addresses, init=True) for each in spec.get("initContainers") or ()]
        main = [self._container(pod, each, addresses, init=False) for each in spec["containers"]]
        return PodPlan(
            uid=metadata["uid"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            node=spec["nodeName"],
            address=addresses.pod,
            job=owner.group,
            zone=zone,
            project=self._settings.project,
            service_account=spec.get("serviceAccountName") or "default",
            state_dir=str(self._settings.state_dir),
            orphan_seconds=self._settings.orphan_seconds,
            grace_seconds=grace_seconds(pod),
            containers=(*first, *main),
            oom_after_seconds=_oom_after(metadata.get("annotations") or {}),
        )

    def _container(self, pod: Obj, container: Obj, addresses: Addresses, *, init: bool) -> ContainerPlan:
        metadata, name = pod["metadata"], container["name"]
        folder = self._workers.folder(metadata["uid"])
        image = images.parse(container["image"])
        volumes = volume_folders(pod, folder.volumes)
        make_folders(container, volumes)
        inside = mounts(container, volumes, folder.termination_log(name))
        declared = spec_variables(
            pod, container, addresses, self._fetch, injected=tpu_variables(pod, container, addresses)
        )
        variables = self._base(pod, addresses, folder, image) | declared
        variables[MARKER] = metadata["uid"]
        if AGENT_DIR in variables:
            # Every container is this machine: the agent is unpacked once, as on emulated VMs.
            variables[AGENT_DIR] = str(agents_folder(self._settings.state_dir / "agents"))
        if len(pod["spec"]["containers"]) > 1:
            variables[CONTAINER_MARKER] = f"{metadata['uid']}/{name}"
        argv = command(container, declared)
        problem = ""
        if not image.has_programs:
            missing = "executable file not found in $PATH" if "/" not in argv[0] else images.no_file(argv[0])
            problem = images.start_error(argv[0], missing)
        hidden = () if image.has_python else (sys.executable, "-I", "-S", hide_python.__file__)
        return ContainerPlan(
            name=name,
            init=init,
            argv=(*hidden, *(inside.rewrite(part) for part in argv)),
            environment={variable: inside.rewrite(value) for variable, value in variables.items()},
            folder=inside.rewrite(container.get("workingDir") or str(folder.home)),
            log=str(self._workers.log(metadata["namespace"], metadata["name"], metadata["uid"], name)),
            termination_log=str(folder.termination_log(name)),
            message_from_log=container.get("terminationMessagePolicy") == "FallbackToLogsOnError",
            start_error=problem,
        )

    def _base(self, pod: Obj, addresses: Addresses, folder: PodFolder, image: images.Image) -> dict[str, str]:
        """What image, runtime and node give a container before its own variables.

        As on an emulated TPU VM, only the emulator's Python first on PATH comes from this user.
        """
        server = f"{addresses.pod}:{METADATA_PORT}"
        return {
            "BASTION_EMULATED_TPU": "1",
            "GCE_METADATA_HOST": server,
            "GCE_METADATA_IP": server,
            "GCE_METADATA_ROOT": server,
            "HOME": str(folder.home),
            "HOSTNAME": hostname(pod),
            "LANG": "C.UTF-8",
            "PATH": f"{Path(sys.executable).parent}:{_SYSTEM_PATH}" if image.has_python else _SYSTEM_PATH,
            **inherited(os.environ),
        }


def grace_seconds(pod: Obj) -> float:
    """Its own grace period, without a deletion's."""
    return float(pod["spec"].get("terminationGracePeriodSeconds", _GRACE_SECONDS))


def _oom_after(annotations: Obj) -> float | None:
    try:
        return float(annotations[OOM_ANNOTATION])
    except (KeyError, ValueError):
        return None
