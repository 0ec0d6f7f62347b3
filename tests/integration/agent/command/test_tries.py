"""Tries in place: a host runs its command again, on the same disk and behind the same claim."""

import time
from pathlib import Path
from typing import Any

import pytest

from bastion.agent.host_state import HostState
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import Claim, HostPhase, Report
from tests.support.waiting import until
from tests.support.worker_stage import KEY, RUN, Stage, command_processes


def agent_that_was_killed(stage: Stage, *tries: int, outcome: Report | None = None) -> None:
    """Leaves on the disk what an agent leaves that is killed in the middle of the last of these tries, or after it."""
    state = HostState(stage.state_dir, run=RUN, host=0)
    assert state.open()
    for number in tries:
        state.mark_started("boot-1", number)
    if outcome is not None:
        state.keep_outcome(outcome)
    state.close()


def test_a_failed_command_runs_again_in_place_when_the_next_try_is_ordered(stage: Stage):
    stage.run("echo try $BASTION_TRY; ls; touch made; exit 3", most=2, host=stage.host(on_vm=True))
    first = stage.final()
    assert (first.phase, first.exit_code) == (HostPhase.EXITED, 3)
    claim = stage.memory.head(keys.claim(RUN, KEY.claim_tag))
    stage.order(restart="worker 0 exited with 3", number=2, most=2)
    until(lambda: stage.waits_for(2))
    stage.order("echo try $BASTION_TRY; ls", number=2, most=2)
    second = stage.final(number=2)
    assert (second.phase, second.exit_code) == (HostPhase.EXITED, 0)
    assert second.started_at > first.ended_at
    assert stage.log() == [
        "stdout F try 1",
        "stderr F bastion: try 2 of 2",
        "stdout F try 2",
        "stdout F made",
    ]
    numbers = [meta.key[-10:] for meta in stage.memory.list(keys.log_segments("job", RUN, 0))]
    assert numbers == [f"{n + 1:010d}" for n in range(len(numbers))]
    assert stage.memory.head(keys.claim(RUN, KEY.claim_tag)) == claim


def test_an_order_to_restart_ends_a_running_command_and_begins_nothing(stage: Stage):
    stage.run(
        "trap 'cat $BASTION_PREEMPT_FILE; exit 0' TERM; echo up; while :; do sleep 0.05; done",
        most=3,
        host=stage.host(on_vm=True),
    )
    until(lambda: "stdout F up" in stage.log())
    stage.order("echo never", restart="worker 1 exited with 7", number=2, most=3)
    until(lambda: stage.waits_for(2))
    assert command_processes() == []
    time.sleep(0.2)
    assert stage.waits_for(2)
    stage.order('test ! -e "$BASTION_PREEMPT_FILE" && echo again', number=2, most=3)
    assert stage.final(number=2).exit_code == 0
    # bash itself may say on stderr that its sleep was terminated.
    assert [line for line in stage.log() if line != "stderr F Terminated"] == [
        "stdout F up",
        "stdout F worker 1 exited with 7",
        "stderr F bastion: try 2 of 3",
        "stdout F again",
    ]


def test_the_last_output_of_a_try_is_stored_though_no_other_begins(stage: Stage):
    lines = "for i in $(seq 300); do echo last $i; done"
    stage.run(
        f"trap '{lines}; exit 0' TERM; echo up; while :; do sleep 0.05; done", most=3, host=stage.host(on_vm=True)
    )
    until(lambda: "stdout F up" in stage.log())
    stage.order("echo never", restart="again", number=2, most=3)
    until(lambda: stage.waits_for(2))
    stage.order(stop="evicted", number=2, most=3)
    assert stage.final(number=2).phase is HostPhase.STOPPED
    assert [line for line in stage.log() if "last" in line] == [f"stdout F last {i}" for i in range(1, 301)]


def test_a_command_that_ignores_the_signal_of_a_restart_is_killed_with_its_whole_group(stage: Stage):
    stage.run("trap '' TERM; (setsid sleep 60 &) ; echo up; sleep 60; sleep 60", most=2, host=stage.host(on_vm=True))
    until(lambda: "stdout F up" in stage.log())
    stage.order(restart="again", number=2, most=2, grace=0.1)
    until(lambda: stage.waits_for(2))
    assert command_processes() == []


def test_a_host_that_succeeded_runs_again_with_the_others(stage: Stage):
    stage.run("true", most=2, host=stage.host(on_vm=True))
    assert stage.final().exit_code == 0
    stage.order(restart="worker 1 exited with 1", number=2, most=2)
    until(lambda: stage.waits_for(2))
    stage.order("exit 4", number=2, most=2)
    assert stage.final(number=2).exit_code == 4


def test_all_hosts_wait_before_any_runs_the_next_try_behind_the_claim_of_the_first(stage: Stage):
    stage.order("exit $BASTION_HOST_INDEX", most=2)
    for worker in (0, 1):
        stage.start(stage.host(worker=worker, hosts=2, on_vm=True))
    assert (stage.final(0).exit_code, stage.final(1).exit_code) == (0, 1)
    claim = stage.memory.head(keys.claim(RUN, KEY.claim_tag))
    stage.order(restart="worker 1 exited with 1", number=2, most=2)
    until(lambda: stage.waits_for(2, 0) and stage.waits_for(2, 1))
    stage.order("true", number=2, most=2)
    assert stage.final(0, number=2).exit_code == stage.final(1, number=2).exit_code == 0
    assert stage.memory.head(keys.claim(RUN, KEY.claim_tag)) == claim


def test_a_first_try_on_a_new_node_may_have_any_number(stage: Stage):
    stage.run("echo $BASTION_TRY", number=3, most=3, host=stage.host(on_vm=True))
    assert stage.final(number=3).exit_code == 0
    assert stage.log() == ["stderr F bastion: try 3 of 3", "stdout F 3"]


def test_an_order_of_an_earlier_try_runs_nothing_again(stage: Stage):
    stage.run("echo $BASTION_TRY", number=2, most=3, host=stage.host(on_vm=True))
    final = stage.final(number=2)
    stage.order("echo $BASTION_TRY", number=1, most=3)
    stage.order("echo $BASTION_TRY", number=2, most=3)
    time.sleep(0.2)
    assert stage.report() == final
    assert stage.log()[1:] == ["stdout F 2"]


def test_the_last_try_is_followed_by_none_and_its_host_reads_no_orders_any_more(stage: Stage):
    stage.run("false", most=1, host=stage.host(on_vm=True))
    final = stage.final()

    def reads_no_orders() -> bool:
        """For ten times as long as it lasts from one look at the order to the next."""
        stage.counting.reset()
        time.sleep(0.3)
        return keys.order(RUN) not in stage.counting.read

    until(reads_no_orders)  # it stops a moment after its report is stored
    stage.order(restart="again", number=2, most=1)
    time.sleep(0.3)
    assert keys.order(RUN) not in stage.counting.read
    assert stage.report() == final


def test_a_stop_reaches_a_host_that_waits_for_its_next_try(stage: Stage):
    stage.run("false", most=2, host=stage.host(on_vm=True))
    stage.final()
    stage.order(restart="again", number=2, most=2)
    until(lambda: stage.waits_for(2))
    stage.order(stop="cancelled by ann", number=2, most=2)
    final = stage.final(number=2)
    assert (final.phase, final.exit_code) == (HostPhase.STOPPED, None)
    assert "cancelled by ann" in final.message


def test_the_end_of_a_command_is_told_before_its_output_is_stored(stage: Stage):
    for method in ("put", "get"):
        stage.store.fail_next(method, key=keys.log_segment("job", RUN, 0, 1), times=100_000)
    stage.run("echo out; exit 7")
    until(lambda: stage.phase() is HostPhase.ENDED)
    ended = stage.report()
    assert (ended.exit_code, ended.error) == (7, "")
    assert ended.started_at <= ended.ended_at
    stage.store.enabled = False
    final = stage.final()
    assert (final.exit_code, final.ended_at) == (7, ended.ended_at)
    assert stage.log() == ["stdout F out"]


def test_the_next_try_does_not_wait_for_the_log_of_the_one_before(stage: Stage):
    for method in ("put", "get"):
        stage.store.fail_next(method, key=keys.log_segment("job", RUN, 0, 1), times=100_000)
    stage.run("echo one; exit 7", most=2, host=stage.host(on_vm=True))
    until(lambda: stage.phase() is HostPhase.ENDED)
    stage.order(restart="worker 0 exited with 7", number=2, most=2)
    until(lambda: stage.waits_for(2))
    stage.order("echo two", number=2, most=2)
    until(lambda: (report := stage.report()).phase is HostPhase.ENDED and report.try_number == 2)
    assert stage.log() == []
    stage.store.enabled = False
    stage.final(number=2)
    assert stage.log() == ["stdout F one", "stderr F bastion: try 2 of 2", "stdout F two"]


@pytest.mark.parametrize(
    "kept",
    [{"phase": HostPhase.EXITED, "exit_code": 1}, {"phase": HostPhase.WAITING, "try_number": 2}],
    ids=["had failed before", "was restarted"],
)
def test_an_agent_that_was_killed_in_its_second_try_runs_nothing_and_says_so(
    stage: Stage, tmp_path: Path, kept: dict[str, Any]
):
    agent_that_was_killed(stage, 1, 2, outcome=Report(run=RUN, host=0, **kept))
    stage.run(f"touch {tmp_path}/ran", number=2, most=3, host=stage.host(on_vm=True))
    final = stage.final(number=2)
    assert (final.phase, final.error) == (HostPhase.FAILED, "HostRestarted")
    stage.order(f"touch {tmp_path}/ran", number=3, most=3)
    time.sleep(0.2)
    assert stage.report() == final
    assert not (tmp_path / "ran").exists()


def between_two_tries(stage: Stage, *, waiting: bool) -> None:
    """As an agent leaves it that was killed after its first try."""
    phase, number = (HostPhase.WAITING, 2) if waiting else (HostPhase.EXITED, 1)
    report = protocol.sign(Report(run=RUN, host=0, boot_id="boot-1", phase=phase, exit_code=3, try_number=number), KEY)
    agent_that_was_killed(stage, 1, outcome=report)
    stage.memory.put(keys.report(RUN, 0), report.to_bytes(), generation=0)
    stage.memory.put(
        keys.claim(RUN, KEY.claim_tag), protocol.sign(Claim(run=RUN, boot_id="boot-1"), KEY).to_bytes(), generation=0
    )
    stage.order("echo again", restart="again", number=2, most=2)


@pytest.mark.parametrize("waiting", [False, True], ids=["had reported its end", "waited for the next"])
def test_an_agent_that_was_killed_between_two_tries_runs_the_next(stage: Stage, waiting: bool):
    between_two_tries(stage, waiting=waiting)
    stage.start(stage.host(on_vm=True))
    until(lambda: stage.waits_for(2))
    stage.order("echo again", number=2, most=2)
    assert stage.final(number=2).exit_code == 0
    assert stage.log()[-1] == "stdout F again"


def test_a_host_that_booted_again_between_two_tries_runs_none(stage: Stage):
    between_two_tries(stage, waiting=False)
    stage.run("echo again", number=2, most=2, host=stage.host(on_vm=True, boot="boot-2"))
    final = stage.final(number=2)
    assert (final.phase, final.error) == (HostPhase.FAILED, "HostRestarted")
    assert stage.log() == []


def test_a_setup_command_runs_once_on_a_host_and_its_output_is_logged(stage: Stage):
    stage.run("echo $BASTION_TRY; exit 1", most=2, setup="echo setting up; touch ready", host=stage.host(on_vm=True))
    stage.final()
    stage.order(restart="again", number=2, most=2)
    until(lambda: stage.waits_for(2))
    stage.order("ls", number=2, most=2, setup="echo setting up; touch ready")
    stage.final(number=2)
    assert stage.log()[0] == "stderr F bastion: setup: echo setting up; touch ready"
    assert stage.log()[1:] == ["stdout F setting up", "stdout F 1", "stderr F bastion: try 2 of 2", "stdout F ready"]


def test_a_setup_command_that_fails_is_named_and_the_command_does_not_run(stage: Stage):
    stage.run("echo ran", setup="echo oh; exit 9", host=stage.host(on_vm=True))
    final = stage.final()
    assert (final.phase, final.error, final.exit_code) == (HostPhase.FAILED, "SetupFailed", 9)
    assert final.started_at == ""
    assert stage.log()[1] == "stdout F oh"
    assert stage.log()[2].startswith("stderr F bastion: the setup (echo oh; exit 9) exited with code 9")


def test_a_host_tells_that_it_prepares_and_a_stop_ends_that_too(stage: Stage):
    stage.run("echo ran", setup="echo up; (setsid sleep 60 &) ; sleep 60", host=stage.host(on_vm=True))
    until(lambda: stage.phase() is HostPhase.PREPARING and "stdout F up" in stage.log())
    stage.order(stop="cancelled by ann")
    assert stage.final().phase is HostPhase.STOPPED
    assert command_processes() == []
    assert "stdout F ran" not in stage.log()
