"""The controllers while the API misbehaves, and over restarts."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

from bastion.emulators.kubernetes.apiserver import ApiServer
from bastion.emulators.kubernetes.apiserver.faults import Fault
from bastion.emulators.kubernetes.client import ApiClient, ApiError, Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    COMPLETION_INDEX,
    JOB,
    JOB_SET,
    POD,
    is_true,
    labels_of,
    phase_of,
)
from bastion.emulators.kubernetes.controllers.controllers import Controllers
from bastion.emulators.kubernetes.controllers.nodes import Pool
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubernetes_jobs import JOB_SETS, job_set
from tests.support.kubernetes_machine import Machine
from tests.support.waiting import until

_GANGS = 6
_SET = "jobset.sigs.k8s.io/jobset-name"


class _Plan:
    """Seeded: of the requests that change or read something, some are refused and some answers are lost."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.quiet = False

    def __call__(self, _method: str, _path: str) -> Fault | None:
        drawn = 1.0 if self.quiet else self._random.random()
        if drawn < 0.04:
            return Fault(refuse=429, retry_after=0)
        if drawn < 0.08:
            return Fault(refuse=500)
        return Fault(cut_reply=True) if drawn < 0.12 else None


def _insist(call: Callable[[], object], *, done: tuple[str, ...] = ()) -> None:
    """Repeat a request until it is answered; `done`: reasons that say that a lost reply had succeeded."""

    def answered() -> bool:
        try:
            call()
        except ApiError as error:
            return error.reason in done
        return True

    until(answered, 20)


def test_gangs_run_once_and_go_whatever_the_api_does(tmp_path: Path) -> None:
    plan = _Plan(7)
    with ApiServer(tmp_path / "state") as server, contextlib.ExitStack() as stack:
        client = ApiClient.connect(server.address)
        stack.callback(client.close)
        controllers = Controllers(client, [Pool.parse("v5litepod-16=3")])
        controllers.open()
        stack.callback(controllers.close)
        machine = Machine(client, controllers, stack.enter_context(FakeKubelet(client)))
        until(lambda: len(machine.nodes()) == 12, 20)
        server.faults.plan(plan)
        names = [f"b-{number}-1" for number in range(_GANGS)]
        for name in names:
            _insist(lambda name=name: client.create(JOB_SETS, job_set(name, hosts=4)), done=("AlreadyExists",))
        ended: set[str] = set()
        looks = 0

        def all_completed() -> bool:
            """Ends gangs that run whole, and goes on breaking watches."""
            nonlocal looks
            looks += 1
            if looks % 5 == 0:
                server.cut_watches()
            if looks % 15 == 0:
                server.expire_history()
            try:
                pods, sets = machine.pods(), client.list(JOB_SETS)["items"]
            except ApiError:
                return False
            for name in names:
                own = [pod for pod in pods if labels_of(pod)[_SET] == name and phase_of(pod) == "Running"]
                indexes = sorted(labels_of(pod)[COMPLETION_INDEX] for pod in own)
                assert len(indexes) == len(set(indexes)), f"an index of {name} runs twice"
                if indexes == ["0", "1", "2", "3"] and name not in ended:
                    ended.add(name)
                    for pod in own:
                        machine.kubelet.finish(pod)
            return all(is_true(each, "Completed") for each in sets)

        until(all_completed, 60)
        assert ended == set(names)
        for name in names:
            path = f"{JOB_SETS}/{name}"
            _insist(lambda path=path: client.delete(path, propagation="Foreground"), done=("NotFound",))
        plan.quiet = True
        until(lambda: machine.left() == [], 30)


def test_new_controllers_take_over_in_the_middle(tmp_path: Path) -> None:
    with ApiServer(tmp_path / "state") as server:
        client = ApiClient.connect(server.address)
        with FakeKubelet(client) as kubelet:
            for stage in ("create", "run", "delete"):
                controllers = Controllers(client, [Pool.parse("v5litepod-16=1")])
                controllers.open()
                machine = Machine(client, controllers, kubelet)
                if stage == "create":
                    client.create(JOB_SETS, job_set(hosts=4))
                    until(machine.pods, 20)
                elif stage == "run":
                    until(lambda: len(machine.running()) == 4, 20)  # noqa: B023
                    names = sorted(pod["metadata"]["name"] for pod in machine.pods())
                    assert len(names) == 4
                    assert len(machine.nodes()) == 4
                    client.delete(JOB_SET.path("default", "b-one-1"), propagation="Foreground")
                else:
                    until(lambda: machine.left() == [], 20)  # noqa: B023
                controllers.close()
        client.close()


def test_the_api_server_may_restart(tmp_path: Path) -> None:
    server = ApiServer(tmp_path / "state")
    server.open()
    client = ApiClient.connect(server.address)
    controllers = Controllers(client, [Pool.parse("v5litepod-16=1")])
    controllers.open()
    with FakeKubelet(client) as kubelet:
        machine = Machine(client, controllers, kubelet)
        client.create(JOB_SETS, job_set(hosts=4))
        until(lambda: len(machine.running()) == 4, 20)
        server.close()
        server.open()
        for pod in machine.running():
            kubelet.finish(pod)
        until(lambda: is_true(client.get(JOB.path("default", "b-one-1-slice-0")), "Complete"), 20)
        assert len(client.list(POD.root)["items"]) == 4
    controllers.close()
    client.close()
    server.close()


def test_room_is_not_given_away_twice_after_the_reply_to_a_binding_was_lost(tmp_path: Path) -> None:
    lost: list[str] = []
    with ApiServer(tmp_path / "state") as server, contextlib.ExitStack() as stack:

        def plan(method: str, path: str) -> Fault | None:
            if method == "POST" and path.endswith("/binding") and not lost:
                lost.append(path)
                server.cut_watches()
                return Fault(cut_reply=True)
            # The cache learns late what the server did.
            late = bool(lost) and method == "GET" and path.startswith(POD.root) and "watch" in path
            return Fault(delay_seconds=0.5) if late else None

        client = ApiClient.connect(server.address)
        stack.callback(client.close)
        controllers = Controllers(client, [Pool.parse("v5litepod-4=1")])
        controllers.open()
        stack.callback(controllers.close)
        machine = Machine(client, controllers, stack.enter_context(FakeKubelet(client)))
        until(lambda: len(machine.nodes()) == 1, 20)
        server.faults.plan(plan)
        for name in ("b-one-1", "b-two-1"):
            client.create(JOB_SETS, job_set(name, hosts=1))
        until(lambda: lost and len(machine.pods()) == 2, 20)
        until(lambda: any(is_unschedulable(pod) for pod in machine.pods()), 20)
        assert len([pod for pod in machine.pods() if pod["spec"].get("nodeName")]) == 1


def is_unschedulable(pod: Obj) -> bool:
    return any(each.get("reason") == "Unschedulable" for each in (pod.get("status") or {}).get("conditions") or ())
