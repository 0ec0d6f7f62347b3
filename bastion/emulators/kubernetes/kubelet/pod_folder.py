"""The folder of one emulated pod: what the kubelet writes for its supervisor, and what that reports.

`pod.json` is written once; `state.json` by the supervisor at each change; `stop.json` orders the end. Files named `oom`
and `evict` are faults, for people and tests. Imports no grpc, google or pydantic: each pod's supervisor imports it.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from bastion.emulators.state_folder import read_document, write_private
from bastion.processes import ProcessId

Phase = Literal["waiting", "running", "terminated"]

# Marks the processes of one of several containers of a pod; `markers.MARKER` marks those of the pod.
CONTAINER_MARKER = "BASTION_POD_CONTAINER"
# The pipe through which supervisors tell the kubelet of a change, a pod's uid per line.
CHANGES = "pod-changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """A container with everything resolved.

    Attributes:
        start_error: Why it cannot start; empty if it can.
        log: Path of the file for its output.
        termination_log: Path of the file for its termination message.
        message_from_log: Whether a failure without a message has the log's end as message.
    """

    name: str
    init: bool
    argv: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    log: str
    termination_log: str
    message_from_log: bool = False
    start_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """A pod for its supervisor.

    Attributes:
        state_dir: The emulator's folder; without an emulator the pod ends after `orphan_seconds`.
        grace_seconds: Between SIGTERM and SIGKILL if no order says otherwise.
        oom_after_seconds: A fault; counted from the start of its containers.
    """

    uid: str
    namespace: str
    name: str
    node: str
    address: str
    job: str
    zone: str
    project: str
    service_account: str
    state_dir: str
    orphan_seconds: float
    grace_seconds: float
    containers: tuple[ContainerPlan, ...]
    oom_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """What a container does; times in seconds since 1970."""

    name: str
    phase: Phase = "waiting"
    container_id: str = ""
    started_at: float = 0.0
    finished_at: float = 0.0
    exit_code: int = 0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """A supervisor's report. `ended`: no container runs or will run."""

    containers: dict[str, ContainerState]
    ended: bool = False


@dataclass(frozen=True, slots=True)
class PodFolder:
    path: Path

    @property
    def plan_file(self) -> Path:
        return self.path / "pod.json"

    @property
    def volumes(self) -> Path:
        return self.path / "volumes"

    @property
    def home(self) -> Path:
        return self.path / "home"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def oom(self) -> Path:
        """A fault: the pod runs out of memory once this file exists."""
        return self.path / "oom"

    @property
    def evict(self) -> Path:
        """A fault: the node evicts the pod; the text names the resource, by default `memory`."""
        return self.path / "evict"

    def termination_log(self, container: str) -> Path:
        return self.path / f"{container}.termination-log"

    def write_plan(self, plan: PodPlan) -> None:
        write_private(self.plan_file, json.dumps(asdict(plan)).encode("utf-8", "surrogateescape"))

    def read_plan(self) -> PodPlan:
        """Raises OSError if it is missing, ValueError if malformed."""
        document = json.loads(self.plan_file.read_bytes().decode("utf-8", "surrogateescape"))
        try:
            containers = tuple(
                ContainerPlan(**{**each, "argv": tuple(each["argv"])}) for each in document["containers"]
            )
            return PodPlan(**{**document, "containers": containers})
        except (TypeError, KeyError) as error:
            raise ValueError(f"{self.plan_file} is not a pod's plan: {error}") from error

    def write_state(self, state: PodState) -> None:
        document = {"containers": [asdict(each) for each in state.containers.values()], "ended": state.ended}
        write_private(self.path / "state.json", json.dumps(document).encode("utf-8", "surrogateescape"))

    def read_state(self) -> PodState:
        """Without a report nothing has started."""
        document = read_document(self.path / "state.json")
        states = [ContainerState(**each) for each in document.get("containers") or ()]
        return PodState(containers={each.name: each for each in states}, ended=bool(document.get("ended")))

    def write_supervisor(self, process: ProcessId) -> None:
        write_private(self.path / "supervisor.pid", str(process).encode())

    def read_supervisor(self) -> ProcessId | None:
        try:
            return ProcessId.parse((self.path / "supervisor.pid").read_text("ascii"))
        except (OSError, UnicodeDecodeError):
            return None

    def order_stop(self, grace_seconds: float) -> None:
        """Order the end; a later order can shorten the grace period."""
        document = {"at": time.time(), "grace_seconds": grace_seconds}
        write_private(self.path / "stop.json", json.dumps(document).encode())

    def read_stop(self) -> tuple[float, float] | None:
        """When the end was ordered, and the grace period in seconds."""
        document: dict[str, Any] = read_document(self.path / "stop.json")
        try:
            return float(document["at"]), float(document["grace_seconds"])
        except (KeyError, TypeError, ValueError):
            return None


def notify(state_dir: Path, uid: str) -> None:
    """Tell the kubelet that a pod changed; nothing happens if none listens."""
    try:
        pipe = os.open(state_dir / CHANGES, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.write(pipe, f"{uid}\n".encode())
    except OSError:  # A full pipe wakes the kubelet anyway.
        pass
    finally:
        os.close(pipe)
