"""One emulated pod: `python -m bastion.emulators.kubernetes.kubelet.pod --folder=DIR --listen-fd=N`.

The supervisor serves the pod's metadata, runs its init containers in order and then its containers, and reports their
states. It imports little, because each pod runs one. Invariants:

* Every process of the pod has the marker `BASTION_VM=<pod uid>`; one that dropped it is found as a descendant.
* The supervisor exits only after every other process of the pod.
* Without an emulator it ends after `orphan_seconds`: a restart can adopt it, and a crash leaves no processes behind.
* SIGTERM goes to the first process of each container only, and SIGKILL after the grace period to all
  (pkg/kubelet/kuberuntime/kuberuntime_container.go, `killContainer`).
"""

from __future__ import annotations

import argparse
import functools
import os
import socket
import sys
import time
from pathlib import Path

from bastion import processes
from bastion.emulators.kubernetes.address import locate
from bastion.emulators.kubernetes.kubelet.container import Container
from bastion.emulators.kubernetes.kubelet.metadata import tree
from bastion.emulators.kubernetes.kubelet.pod_folder import CONTAINER_MARKER, PodFolder, PodPlan, PodState, notify
from bastion.emulators.markers import MARKER
from bastion.emulators.metadata_server import MetadataServer
from bastion.emulators.supervision import Orphanhood, Wakeups, ended_children

# How often faults are looked for, in seconds.
_FAULT_SECONDS = 1.0


class PodSupervisor:
    """Runs one pod, from its first container to the end of its last process."""

    def __init__(self, plan: PodPlan, folder: PodFolder, listener: socket.socket) -> None:
        self._plan = plan
        self._folder = folder
        self._state_dir = Path(plan.state_dir)
        self._metadata = MetadataServer(tree(plan), listener)
        self._containers = [Container(each, plan.uid) for each in plan.containers]
        self._orphanhood = Orphanhood(self._has_emulator, plan.orphan_seconds)
        self._started_at = time.time()
        self._kill_at: float | None = None
        self._out_of_memory = False
        self._wakeups = Wakeups()

    def run(self) -> None:
        self._metadata.start()
        # From the first report on signals are handled; an order before it came without one.
        self._report()
        self._follow_orders()
        complete = not self._stopping
        for container in self._containers:
            if container.plan.init and complete:
                self._start(container)
                self._until_ended()
                complete = container.state.exit_code == 0 and not self._stopping
        if complete:
            for container in self._containers:
                if not container.plan.init:
                    self._start(container)
            self._until_ended()
        processes.end_marked(MARKER, self._plan.uid, grace_seconds=0)
        self._report(ended=True)

    def _start(self, container: Container) -> None:
        container.start()
        self._report()

    def _until_ended(self) -> None:
        """Wait until no container runs."""
        self._reap()
        while any(container.runs for container in self._containers):
            self._wakeups.wait(self._wait_seconds())
            self._reap()
            self._follow_orders()
            self._apply_faults()
            if self._kill_at is not None and time.time() >= self._kill_at:
                processes.end_marked(MARKER, self._plan.uid, grace_seconds=0)

    def _wait_seconds(self) -> float:
        times = [self._orphanhood.period, _FAULT_SECONDS]
        if self._kill_at is not None:
            times.append(self._kill_at - time.time())
        if self._plan.oom_after_seconds is not None and not self._out_of_memory:
            times.append(self._started_at + self._plan.oom_after_seconds - time.time())
        return max(0.0, min(times))

    @property
    def _stopping(self) -> bool:
        return self._kill_at is not None

    def _follow_orders(self) -> None:
        """Begin the end of all containers, or shorten its grace period."""
        order = self._folder.read_stop()
        if order is not None:
            kill_at = order[0] + order[1]
        elif self._wakeups.ending or self._orphanhood.is_over():
            kill_at = time.time() + self._plan.grace_seconds
        else:
            return
        if not self._stopping:
            self._kill_at = kill_at
            for container in self._containers:
                container.terminate()
        elif order is not None:
            self._kill_at = kill_at

    def _apply_faults(self) -> None:
        after = self._plan.oom_after_seconds
        due = after is not None and time.time() >= self._started_at + after
        if not self._out_of_memory and (due or self._folder.oom.exists()):
            # Since Kubernetes 1.28 the kernel kills all processes of a container (memory.oom.group).
            self._out_of_memory = True
            processes.end_marked(MARKER, self._plan.uid, grace_seconds=0)

    def _reap(self) -> None:
        """Note ended containers. Other children are orphans that the pod's processes left."""
        changed = False
        for pid, code in ended_children():
            for container in self._containers:
                if container.runs and container.pid == pid:
                    others = functools.partial(self._end_others, container)
                    container.ended(code, end_others=others, out_of_memory=self._out_of_memory and code == -9)
                    changed = True
        if changed:
            self._report()

    def _end_others(self, container: Container) -> None:
        others = any(each.runs for each in self._containers if each is not container)
        # Alone, it owns every process, also those without its marker.
        marker, value = (
            (CONTAINER_MARKER, container.plan.environment[CONTAINER_MARKER]) if others else (MARKER, self._plan.uid)
        )
        processes.end_marked(marker, value, grace_seconds=0, poll_seconds=0.01)

    def _report(self, *, ended: bool = False) -> None:
        states = {container.plan.name: container.state for container in self._containers}
        self._folder.write_state(PodState(containers=states, ended=ended))
        notify(self._state_dir, self._plan.uid)

    def _has_emulator(self) -> bool:
        return self._folder.plan_file.exists() and locate(self._state_dir) is not None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bastion.emulators.kubernetes.kubelet.pod", description="One emulated pod."
    )
    parser.add_argument("--folder", type=Path, required=True, help="the pod's folder, with pod.json")
    parser.add_argument("--listen-fd", type=int, required=True, help="listening socket for the metadata server")
    arguments = parser.parse_args(argv)
    os.set_inheritable(arguments.listen_fd, False)
    listener = socket.socket(fileno=arguments.listen_fd)
    folder = PodFolder(arguments.folder)
    processes.become_subreaper()
    PodSupervisor(folder.read_plan(), folder, listener).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
