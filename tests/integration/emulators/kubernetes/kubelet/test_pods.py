"""Supervised pods as processes, without an API server: containers, signals, faults, adoption."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bastion import processes
from bastion.emulators import state_folder
from bastion.emulators.kubernetes.address import ADDRESS_FILE
from bastion.emulators.kubernetes.kubelet.addresses import PodAddresses
from bastion.emulators.kubernetes.kubelet.environment import Addresses
from bastion.emulators.kubernetes.kubelet.hide_python import FOLDERS
from bastion.emulators.kubernetes.kubelet.planning import OOM_ANNOTATION, Owner, Planner
from bastion.emulators.kubernetes.kubelet.pod_folder import ContainerState, PodPlan
from bastion.emulators.kubernetes.kubelet.settings import KubeletSettings
from bastion.emulators.kubernetes.kubelet.workers import Worker, Workers
from bastion.emulators.loopback import METADATA_PORT
from bastion.emulators.markers import MARKER
from tests.support.waiting import until

Obj = dict[str, Any]


class Machine:
    """A state folder with an emulator that is published but does nothing; starts pods in it."""

    def __init__(self, folder: Path) -> None:
        self.settings = KubeletSettings(state_dir=folder, orphan_seconds=60.0)
        self.workers = Workers(folder)
        self.workers.prepare()
        self.addresses = PodAddresses()
        self.uids: list[str] = []
        self._numbers = itertools.count()
        address = {"server": "https://127.0.0.1:1", "token": "t", "ca_file": "none"}
        state_folder.publish(folder / ADDRESS_FILE, address, state_folder.this_process())

    def plan(self, pod: Obj) -> tuple[PodPlan, Any]:
        uid = pod["metadata"]["uid"]
        listener, addresses = self.addresses.take(uid, 0, 1)
        planner = Planner(self.settings, self.workers, fetch=lambda kind, name: None)
        plan = planner.plan(pod, Owner(group=uid), Addresses(pod=addresses[0], node="10.0.0.1"), "us-central2-b")
        return plan, listener

    def start(self, pod: Obj, **changes: Any) -> Worker:
        plan, listener = self.plan(pod)
        self.uids.append(plan.uid)
        return self.workers.start(replace(plan, **changes), listener)

    def run(self, pod: Obj) -> dict[str, ContainerState]:
        worker = self.start(pod)
        return self.wait(worker)

    def wait(self, worker: Worker) -> dict[str, ContainerState]:
        until(lambda: worker.look() or self.workers.reap() or worker.ended)
        assert processes.marked(MARKER, worker.uid) == []
        return worker.state().containers

    def log(self, pod: Obj, container: str = "host") -> str:
        metadata = pod["metadata"]
        return self.workers.log(metadata["namespace"], metadata["name"], metadata["uid"], container).read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.addresses.close()
    for uid in machine.uids:
        processes.end_marked(MARKER, uid, grace_seconds=0)


def container(script: str, *, name: str = "host", **fields: Any) -> Obj:
    return {"name": name, "image": "python:3.12", "command": ["/bin/bash", "-c", script], **fields}


def pod(*containers: Obj, init: tuple[Obj, ...] = (), annotations: Obj | None = None, **spec: Any) -> Obj:
    return {
        "metadata": {
            "name": "a-pod",
            "namespace": "default",
            "uid": str(uuid.uuid4()),
            "labels": {"color": "blue"},
            "annotations": annotations or {},
        },
        "spec": {
            "nodeName": "node-1",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "containers": list(containers),
            "initContainers": list(init),
            **spec,
        },
    }


def test_a_container_runs_its_command_in_its_environment_and_its_message_and_code_are_kept(machine: Machine) -> None:
    script = 'echo "$COLOR in $PWD of $HOSTNAME"; echo "the reason" > "$LOG"; exit 3'
    env = [
        {"name": "COLOR", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['color']"}}},
        {"name": "LOG", "value": "/dev/termination-log"},
    ]
    mine = pod(container(script, env=env))
    state = machine.run(mine)["host"]
    assert (state.exit_code, state.reason, state.message) == (3, "Error", "the reason\n")
    assert 0 < state.started_at <= state.finished_at
    home = machine.workers.folder(mine["metadata"]["uid"]).home
    assert machine.log(mine) == f"blue in {home} of a-pod\n"


def test_init_containers_share_volumes_and_run_in_order_before_the_containers(machine: Machine) -> None:
    mounted = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    env = [{"name": "FILE", "value": "/shared/file"}]
    init = [container(f'echo {name} >> "$FILE"', name=name, env=env, **mounted) for name in ("first", "second")]
    main = container('cat "$FILE" > "$1"', env=env, args=["self", "/shared/copy"], **mounted)
    mine = pod(main, init=tuple(init), volumes=[{"name": "shared", "emptyDir": {}}])
    states = machine.run(mine)
    assert {name: state.reason for name, state in states.items()} == dict.fromkeys(
        ("first", "second", "host"), "Completed"
    )
    copy = machine.workers.folder(mine["metadata"]["uid"]).volumes / "shared" / "copy"
    assert copy.read_text() == "first\nsecond\n"


def test_a_failed_init_container_keeps_the_others_from_starting(machine: Machine) -> None:
    states = machine.run(pod(container("true"), init=(container("exit 5", name="first"),)))
    assert (states["first"].exit_code, states["host"].phase) == (5, "waiting")


def test_a_killed_process_counts_128_more_and_a_missing_program_cannot_start(machine: Machine) -> None:
    state = machine.run(pod(container("kill -KILL $$$$")))["host"]
    assert (state.exit_code, state.reason) == (137, "Error")
    absent = {"name": "host", "image": "x", "command": ["/bin/no-such-program"]}
    state = machine.run(pod(absent))["host"]
    assert (state.exit_code, state.reason, state.started_at) == (128, "StartError", 0)
    assert state.message.endswith('exec: "/bin/no-such-program": stat /bin/no-such-program: no such file or directory')


def test_a_variable_with_a_nul_keeps_its_container_from_starting_and_no_other(machine: Machine) -> None:
    secret = [{"name": "BINARY", "value": "a\x00b"}]
    state = machine.run(pod(container("true", env=secret)))["host"]
    assert (state.exit_code, state.reason) == (128, "StartError")
    assert state.message.endswith(": invalid argument")
    assert machine.run(pod(container("true")))["host"].reason == "Completed"


def test_other_processes_die_with_the_first_one_even_without_the_marker(machine: Machine) -> None:
    script = "env -i setsid sleep 1000 & echo $! > pid; setsid sleep 1000 & exec true"
    mine = pod(container(script))
    assert machine.run(mine)["host"].exit_code == 0
    pid = int((machine.workers.folder(mine["metadata"]["uid"]).home / "pid").read_text())
    assert processes.ProcessId.of(pid) is None


def test_a_container_that_ends_leaves_the_others_alone(machine: Machine) -> None:
    first = container("setsid sleep 1000 & echo $! > pid; exec true", name="first")
    second = container("trap 'exit 5' TERM; touch up; while :; do sleep 0.02; done", name="second")
    mine = pod(first, second)
    worker = machine.start(mine)
    until(lambda: [each.phase for each in worker.state().containers.values()] == ["terminated", "running"])
    until(lambda: (worker.folder.home / "up").exists())
    pid = int((worker.folder.home / "pid").read_text())
    until(lambda: processes.ProcessId.of(pid) is None)
    worker.order_stop(30.0)
    states = machine.wait(worker)
    assert (states["first"].exit_code, states["second"].exit_code) == (0, 5)


def test_the_order_to_stop_reaches_the_first_process_only_which_may_save(machine: Machine) -> None:
    child = f"""{sys.executable} -c 'import signal, time
signal.signal(signal.SIGTERM, lambda *_: open("told", "w").close())
open("up", "w").close()
time.sleep(1000)' & """
    script = child + "trap 'echo saved; exit 7' TERM; until [ -e up ]; do sleep 0.02; done; touch ready; wait"
    mine = pod(container(script))
    worker = machine.start(mine)
    home = worker.folder.home
    until(lambda: (home / "ready").exists())
    worker.order_stop(30.0)
    state = machine.wait(worker)["host"]
    assert (state.exit_code, state.reason) == (7, "Error")
    assert machine.log(mine) == "saved\n"
    assert not (home / "told").exists()


def test_without_a_handler_the_first_process_lives_until_the_grace_period_ends(machine: Machine) -> None:
    """As process 1 of a container it gets no signal without a handler."""
    worker = machine.start(pod(container("touch ready; exec sleep 1000")))
    until(lambda: (worker.folder.home / "ready").exists())
    worker.order_stop(0.3)
    state = machine.wait(worker)["host"]
    assert (state.exit_code, state.reason) == (137, "Error")
    assert state.finished_at - state.started_at >= 0.3


def test_a_shorter_order_shortens_the_grace_period(machine: Machine) -> None:
    worker = machine.start(pod(container("touch ready; exec sleep 1000")))
    until(lambda: (worker.folder.home / "ready").exists())
    worker.order_stop(1000.0)
    worker.order_stop(0.0)
    assert machine.wait(worker)["host"].exit_code == 137


def test_an_order_that_is_repeated_grants_no_more_time_and_survives_a_restart(machine: Machine) -> None:
    worker = machine.start(pod(container("touch ready; exec sleep 1000")))
    until(lambda: (worker.folder.home / "ready").exists())
    worker.order_stop(0.3)
    again = Workers(machine.settings.state_dir).adopt()[worker.uid]
    assert again.stopping

    def is_over() -> bool:
        again.order_stop(0.3)
        again.look()
        machine.workers.reap()
        return again.ended

    until(is_over, 20)


def test_an_order_before_the_first_container_starts_keeps_it_from_starting(machine: Machine) -> None:
    mine = pod(container("echo started"))
    plan, listener = machine.plan(mine)
    machine.workers.folder(plan.uid).order_stop(0.0)
    states = machine.wait(machine.workers.start(plan, listener))
    assert states["host"].phase == "waiting"


@pytest.mark.parametrize("way", ["annotation", "file"])
def test_out_of_memory_kills_the_whole_container(machine: Machine, way: str) -> None:
    mine = pod(
        container("trap '' TERM; sleep 1000 & touch ready; wait"),
        annotations={OOM_ANNOTATION: "0.05"} if way == "annotation" else {},
    )
    worker = machine.start(mine)
    if way == "file":
        until(lambda: (worker.folder.home / "ready").exists())
        worker.folder.oom.touch()
        worker.wake()
    state = machine.wait(worker)["host"]
    assert (state.exit_code, state.reason) == (137, "OOMKilled")


def test_the_last_log_lines_are_the_message_if_the_policy_says_so(machine: Machine) -> None:
    wordy = container("seq 1 100; exit 1", terminationMessagePolicy="FallbackToLogsOnError")
    message = machine.run(pod(wordy))["host"].message
    assert message.splitlines() == [str(number) for number in range(21, 101)]


def test_an_image_without_python_has_none_in_any_folder(machine: Machine) -> None:
    names = " ".join(f"{folder}/{name}" for folder in FOLDERS for name in ("python3", "python3.11", "python3.12"))
    looks = f"for each in {names}; do [ -f $each ] && exit 2; done"
    script = f"python3 -c 0 2> /dev/null && exit 1; {looks}; echo $(type -P bash)"
    mine = pod({**container(script.replace("$", "$$")), "image": "nopython/x"})
    state = machine.run(mine)["host"]
    if "cannot be emulated here" in machine.log(mine):
        pytest.skip("this machine allows no mount namespaces")
    assert state.exit_code == 0
    assert machine.log(mine).endswith("/bash\n")


def test_a_pod_has_a_metadata_server_with_its_identity(machine: Machine) -> None:
    worker = machine.start(pod(container("touch ready; sleep 1000")))
    until(lambda: (worker.folder.home / "ready").exists())
    url = f"http://{worker.plan.address}:{METADATA_PORT}/computeMetadata/v1/instance/service-accounts/default/"
    found = {}
    for leaf in ("token", "email"):
        request = urllib.request.Request(url + leaf, headers={"Metadata-Flavor": "Google"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            found[leaf] = answer.read().decode()
    assert json.loads(found["token"])["access_token"] == "emulated"
    assert found["email"] == "emulated.svc.id.goog"


def test_a_restarted_emulator_adopts_a_pod_and_sees_its_end(machine: Machine) -> None:
    worker = machine.start(pod(container("until [ -e stop ]; do sleep 0.02; done; exit 4")))
    until(lambda: {each.phase for each in worker.state().containers.values()} == {"running"})
    again = Workers(machine.settings.state_dir).adopt()[worker.uid]
    assert (again.ended, again.supervisor) == (False, worker.supervisor)
    (worker.folder.home / "stop").touch()
    assert machine.wait(again)["host"].exit_code == 4


def test_what_a_dead_supervisor_left_is_ended(machine: Machine) -> None:
    worker = machine.start(pod(container("sleep 1000")))
    until(lambda: {each.phase for each in worker.state().containers.values()} == {"running"})
    assert worker.supervisor is not None
    worker.supervisor.signal(signal.SIGKILL)
    states = machine.wait(worker)
    assert (states["host"].phase, worker.state().ended) == ("running", False)


def test_a_pod_without_an_emulator_ends_by_itself(machine: Machine) -> None:
    (machine.settings.state_dir / ADDRESS_FILE).unlink()
    worker = machine.start(pod(container("exec sleep 1000")), orphan_seconds=0.2, grace_seconds=0.0)
    assert machine.wait(worker)["host"].exit_code == 137


def test_pods_of_one_job_know_all_addresses_before_the_others_start() -> None:
    addresses = PodAddresses()
    try:
        second, known = addresses.take("job", 1, 3)
        assert [address.rpartition(".")[2] for address in known] == ["1", "2", "3"]
        assert second.getsockname() == (known[1], METADATA_PORT)
        first, same = addresses.take("job", 0, 3)
        assert same == known
        first.close()
        second.close()
    finally:
        addresses.close()
    again = PodAddresses()
    again.adopt("job", known[1])
    third, found = again.take("job", 2, 3)
    third.close()
    assert found == known


def test_a_file_descriptor_of_the_emulator_is_not_inherited(machine: Machine) -> None:
    mine = pod(container("ls /proc/self/fd | wc -l"))
    machine.run(mine)
    assert int(machine.log(mine)) <= 4
