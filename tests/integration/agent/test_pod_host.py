"""What is different about a host in a pod: it waits for all hosts, leaves when done, and knows when it is killed."""

import threading
from pathlib import Path
from typing import Any

import pytest

from bastion.agent import stop_reasons
from bastion.agent.host import Host
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import Claim, HostPhase
from bastion.testing.faulty_store import FaultyStore
from tests.support.waiting import until
from tests.support.worker_stage import KEY, RUN, Stage


def pod(stage: Stage, worker: int = 0, hosts: int = 1, **more: Any) -> Host:
    changes = {"leave_when_done": True, "gather_hosts": hosts > 1, **more}
    return stage.host(
        worker=worker, hosts=hosts, on_vm=True, state_dir=stage.state_dir / str(worker), boot=f"pod-{worker}", **changes
    )


def test_no_host_runs_before_every_host_has_reported(stage: Stage, tmp_path: Path):
    stage.order(f"touch {tmp_path}/ran")
    first = stage.start(pod(stage, 0, hosts=2))
    listed = keys.reports(RUN)
    until(lambda: listed in stage.counting.listed and stage.phase() is HostPhase.WAITING)
    stage.counting.reset()
    until(lambda: stage.counting.listed.count(listed) >= 2)
    assert stage.memory.head(keys.claim(RUN, KEY.claim_tag)) is None
    assert not (tmp_path / "ran").exists()
    second = stage.start(pod(stage, 1, hosts=2))
    for thread in (first, second):
        thread.join(20.0)
        assert not thread.is_alive()
    assert (stage.final(0).phase, stage.final(1).phase) == (HostPhase.EXITED, HostPhase.EXITED)
    assert protocol.read(Claim, stage.memory.get(keys.claim(RUN, KEY.claim_tag)).data).boot_id == "pod-0"


def test_it_stays_while_a_try_may_follow_and_leaves_after_the_last(stage: Stage):
    stage.order("exit 3", most=2)
    host = pod(stage)
    thread = stage.start(host)
    assert stage.final().exit_code == 3
    thread.join(0.2)
    assert thread.is_alive()
    stage.order("exit 4", number=2, most=2)
    thread.join(20.0)
    assert not thread.is_alive()
    assert host.last_report == stage.final(number=2)
    assert stage.final(number=2).exit_code == 4


def test_it_leaves_when_the_order_to_stop_comes_after_its_end(stage: Stage):
    stage.order("exit 3", most=2)
    thread = stage.start(pod(stage))
    stage.final()
    stage.order("", stop="another host failed", most=2)
    thread.join(20.0)
    assert not thread.is_alive()
    assert stage.final().exit_code == 3


def exit_code(host: Host) -> int:
    codes: list[int] = []
    threading.Thread(target=lambda: codes.append(host.run()), daemon=True).start()
    until(lambda: codes)
    return codes[0]


@pytest.mark.parametrize("answers", [True, False], ids=["the bucket answers", "the bucket does not answer"])
def test_an_idle_pod_without_a_daemon_leaves_and_its_code_says_whether_it_could_report(stage: Stage, answers: bool):
    if not answers:
        stage.store = FaultyStore(stage.memory, before=1.0)
    host = pod(stage, power_off_seconds=0.3)
    assert exit_code(host) == (0 if answers else 75)
    if answers:
        assert (stage.final().phase, stage.final().error) == (HostPhase.STOPPED, "HostShutDown")


@pytest.mark.parametrize(("seconds", "saves"), [(20.0, True), (0.0, False)], ids=["given", "a VM's"])
def test_a_command_has_the_pods_time_to_save(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, saves: bool
):
    monkeypatch.setattr(stop_reasons, "SHUTDOWN_GRACE_SECONDS", 0.1)
    go_on = tmp_path / "go-on"
    trap = f"until [ -e {go_on} ]; do sleep 0.02; done; echo saved; exit 0"
    stage.order(f"trap 'echo asked; {trap}' TERM; echo up; while :; do sleep 0.02; done")
    host = pod(stage, shutdown_seconds=seconds)
    thread = stage.start(host)
    until(lambda: "stdout F up" in stage.log())
    host.shut_down()
    thread.join(0.3 if saves else 20.0)
    assert thread.is_alive() is saves
    go_on.touch()
    thread.join(20.0)
    assert not thread.is_alive()
    report = stage.final()
    assert (report.phase, report.error, report.exit_code) == (HostPhase.STOPPED, "HostShutDown", 0 if saves else 137)
    assert ("stdout F saved" in stage.log()) is saves


def test_what_the_command_leaves_of_its_time_is_for_its_log(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bastion.agent.command.one_try.SHUTDOWN_FLUSH_SECONDS", 0.0)
    faulty = stage.store = FaultyStore(stage.counting, before=1.0)
    faulty.enabled = False
    stage.order("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.02; done")
    host = pod(stage, shutdown_seconds=20.0)
    thread = stage.start(host)
    until(lambda: "stdout F up" in stage.log())
    faulty.enabled = True
    host.shut_down()
    thread.join(0.3)
    assert thread.is_alive()
    faulty.enabled = False
    thread.join(20.0)
    assert not thread.is_alive()
    assert stage.final().exit_code == 0
    assert "stdout F saved" in stage.log()
