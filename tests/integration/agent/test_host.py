"""A whole host against a store in memory: real commands, no daemon."""

import threading
import time
from pathlib import Path

import pytest

from bastion.adapters.system_clock import SystemClock
from bastion.agent.command import execution
from bastion.agent.host_state import HostState
from bastion.agent.logs.lines import LogRecord, text_bytes_at_most
from bastion.agent.logs.spool import LogSpool
from bastion.core.bucket import keys, protocol, segment_proofs
from bastion.core.bucket.protocol import Claim, HostPhase, Report
from bastion.core.instants import from_rfc3339
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.memory_store import MemoryStore
from tests.support.waiting import until
from tests.support.worker_stage import KEY, RUN, Stage, command_processes


def test_a_command_runs_once_behind_its_claim_and_its_end_is_reported_after_its_output(stage: Stage):
    stage.run("echo out; echo err >&2; exit 7", host=stage.host(raw_log="logs/job"))
    report = stage.final()
    assert (report.phase, report.exit_code, report.error) == (HostPhase.EXITED, 7, "")
    assert report.started_at <= report.ended_at
    # The report is the last write, so the log is whole without waiting.
    assert sorted(stage.log()) == ["stderr F err", "stdout F out"]
    assert sorted(stage.memory.get("logs/job").data.split()) == [b"err", b"out"]
    assert protocol.read_signed(Claim, stage.memory.get(keys.claim(RUN, KEY.claim_tag)).data, KEY.public).opened


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_how_long_a_command_ran_does_not_depend_on_who_sets_the_clock(stage: Stage, tmp_path: Path, step: float):
    is_set = tmp_path / "set"

    class SetClock(SystemClock):
        def now(self) -> float:
            return super().now() + (step if is_set.exists() else 0.0)

    stage.run(f"touch {is_set}; exit 3", host=stage.host(clock=SetClock()))
    report = stage.final()
    assert report.exit_code == 3
    assert 0 <= from_rfc3339(report.ended_at) - from_rfc3339(report.started_at) < 600


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("kill -9 $$", 137), ("exit 300", 44), ("no-such", 127)])
def test_exit_codes_are_as_a_shell_gives_them(stage: Stage, monkeypatch, command: str, code: int):
    monkeypatch.setattr(execution, "SHUTDOWN_SIGNAL_SECONDS", 0.05)
    stage.run(command)
    assert (stage.final().phase, stage.final().exit_code) == (HostPhase.EXITED, code)


def test_without_an_order_nothing_is_claimed(stage: Stage):
    stage.start(stage.host())
    until(lambda: stage.phase() is HostPhase.WAITING)
    time.sleep(0.1)
    assert stage.memory.head(keys.claim(RUN, KEY.claim_tag)) is None


def test_a_stop_order_before_the_claim_ends_the_host_without_running(stage: Stage, tmp_path: Path):
    stage.run(f"touch {tmp_path}/ran", stop="cancelled")
    report = stage.final()
    assert (report.phase, report.exit_code) == (HostPhase.STOPPED, None)
    assert "cancelled" in report.message
    assert stage.memory.head(keys.claim(RUN, KEY.claim_tag)) is None
    assert not (tmp_path / "ran").exists()


def test_a_closed_gate_keeps_the_command_from_running(stage: Stage, tmp_path: Path):
    stage.memory.put(
        keys.claim(RUN, KEY.claim_tag), protocol.sign(Claim(run=RUN, closed="given up"), KEY).to_bytes(), generation=0
    )
    stage.run(f"touch {tmp_path}/ran")
    assert stage.final().phase is HostPhase.REFUSED
    assert not (tmp_path / "ran").exists()


def test_other_workers_wait_for_worker_0(stage: Stage):
    stage.run("echo $BASTION_HOST_INDEX of $BASTION_NUM_HOSTS", host=stage.host(worker=1, hosts=2, on_vm=True))
    until(lambda: stage.phase(1) is HostPhase.WAITING)
    time.sleep(0.1)
    assert stage.phase(1) is HostPhase.WAITING
    stage.start(stage.host(worker=0, hosts=2, on_vm=True))
    assert stage.final(0).exit_code == stage.final(1).exit_code == 0
    assert (stage.log(0), stage.log(1)) == (["stdout F 0 of 2"], ["stdout F 1 of 2"])


def test_a_stop_order_shows_the_reason_and_lets_the_command_save_its_work(stage: Stage):
    stage.run("trap 'cat $BASTION_PREEMPT_FILE; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    until(lambda: stage.phase() is HostPhase.RUNNING)
    until(lambda: "stdout F ready" in stage.log())
    stage.order(stop="preempted: for vision", grace=20.0)
    report = stage.final()
    assert (report.phase, report.exit_code, report.message) == (HostPhase.STOPPED, 3, "preempted: for vision")
    assert "stdout F preempted: for vision" in stage.log()


def test_a_checkpoint_is_reported_while_the_command_runs_and_the_last_one_with_its_end(stage: Stage, tmp_path: Path):
    go = tmp_path / "go"
    stage.run(
        'test ! -e "$BASTION_CHECKPOINT_FILE" || exit 9; touch "$BASTION_CHECKPOINT_FILE"; '
        f'until test -e {go}; do sleep 0.02; done; touch "$BASTION_CHECKPOINT_FILE"'
    )
    until(lambda: (report := stage.report()) is not None and report.checkpointed_at)
    running = stage.report()
    assert running is not None
    assert running.phase is HostPhase.RUNNING
    go.touch()
    final = stage.final()
    assert final.exit_code == 0
    assert running.started_at == final.started_at <= running.checkpointed_at < final.checkpointed_at <= final.ended_at


def test_a_command_that_touches_its_file_all_the_time_causes_one_report_beside_the_others(stage: Stage, tmp_path: Path):
    stage.run(f'until test -e {tmp_path}/go; do touch "$BASTION_CHECKPOINT_FILE"; sleep 0.01; done')
    until(lambda: (report := stage.report()) is not None and report.checkpointed_at)
    time.sleep(0.3)
    (tmp_path / "go").touch()
    stage.final()
    assert stage.counting.written.count(keys.report(RUN, 0)) <= 5  # waiting, running, a checkpoint, ended, stored


@pytest.mark.parametrize("thing", ["mkdir", "mkfifo", "ln -s /proc/self/mem"])
def test_what_is_no_file_in_place_of_the_checkpoint_file_harms_no_job(stage: Stage, thing: str):
    stage.run(f'{thing} "$BASTION_CHECKPOINT_FILE" && sleep 0.2')
    assert (stage.final().exit_code, stage.final().checkpointed_at) == (0, "")


def test_a_command_that_ignores_the_signal_is_killed_after_the_grace_period_with_all_it_started(stage: Stage):
    stage.run("trap '' TERM; (setsid sleep 60 &) ; env -i sleep 60 & echo ready; sleep 60; sleep 60")
    until(lambda: "stdout F ready" in stage.log())
    stage.order(stop="cancelled", grace=0.2)
    report = stage.final()
    assert (report.phase, report.exit_code) == (HostPhase.STOPPED, 137)
    assert command_processes() == []


def test_a_second_stop_with_less_grace_is_obeyed(stage: Stage):
    stage.run("trap '' TERM; echo ready; while :; do sleep 0.05; done")
    until(lambda: "stdout F ready" in stage.log())
    stage.order(stop="preempted", grace=3600.0)
    time.sleep(0.1)
    stage.order(stop="cancelled", grace=0.0)
    assert stage.final().exit_code == 137


def test_what_a_command_leaves_behind_is_ended_and_its_output_kept(stage: Stage, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(execution, "ORPHAN_GRACE_SECONDS", 20.0)
    # The daemonised child holds the pipes open and has left the session.
    left = f'trap "echo bye; exit" TERM; echo up; touch {tmp_path}/up; while :; do sleep 0.05; done'
    stage.run(f"setsid bash -c '{left}' & until test -e {tmp_path}/up; do sleep 0.02; done")
    report = stage.final()
    assert (report.phase, report.exit_code) == (HostPhase.EXITED, 0)
    # bash itself may say on stderr that its sleep was terminated.
    assert [line for line in stage.log() if line.startswith("stdout")] == ["stdout F up", "stdout F bye"]
    assert command_processes() == []


def test_an_unreachable_bucket_does_not_stop_the_command_and_everything_arrives_later(stage: Stage, tmp_path: Path):
    stage.run(f"echo one; until test -e {tmp_path}/go; do sleep 0.02; done; echo two; touch {tmp_path}/done")
    until(lambda: stage.phase() is HostPhase.RUNNING and "stdout F one" in stage.log())
    for method in ("get", "head", "put", "append", "list"):
        stage.store.fail_next(method, times=100_000)
    (tmp_path / "go").touch()
    until(lambda: (tmp_path / "done").exists())
    time.sleep(0.3)
    assert stage.phase() is HostPhase.RUNNING
    stage.store.enabled = False
    assert stage.final().exit_code == 0
    assert stage.log() == ["stdout F one", "stdout F two"]


def test_where_another_machine_may_start_it_again_a_command_ends_when_its_order_is_lost(stage: Stage):
    stage.run("echo up; sleep 60", host=stage.host(order_lost_seconds=2.0))
    until(lambda: "stdout F up" in stage.log())
    stage.store.fail_next("head", key=keys.order(RUN), times=100_000)
    report = stage.final()
    assert (report.phase, report.error) == (HostPhase.FAILED, "OrderLost")
    assert command_processes() == []


def leave_in_spool(state: HostState, *lines: str) -> None:
    """As an agent leaves it that was killed."""
    spool = LogSpool(
        state.spool_dir / "segments", chunk_bytes=10**6, cost_of=text_bytes_at_most, monotonic=time.monotonic
    )
    spool.open()
    spool.put([LogRecord(stream="stdout", at=1_800_000_001.0, data=line.encode() + b"\n") for line in lines])


def test_an_agent_that_starts_again_after_its_command_began_reports_it_and_does_not_run_twice(stage: Stage, tmp_path):
    # As an agent that was killed leaves it: the mark, a process of the command, a first segment.
    first = HostState(stage.state_dir, run=RUN, host=0)
    assert first.open()
    first.mark_started("boot-1", 1)
    first.close()
    leave_in_spool(first, "y", "z")
    segment = keys.log_segment("job", RUN, 0, 1)
    text = b"2027-01-15T08:00:00.000000Z stdout F x\n"
    stage.memory.put(segment, segment_proofs.with_proof(segment, text, KEY), generation=0)
    stage.run(f"touch {tmp_path}/ran")
    report = stage.final()
    assert (report.phase, report.error) == (HostPhase.FAILED, "HostRestarted")
    assert not (tmp_path / "ran").exists()
    assert stage.log()[:3] == ["stdout F x", "stdout F y", "stdout F z"]
    assert stage.log()[3].startswith("gap F an unknown number of bytes")


def test_an_agent_that_died_between_the_end_and_the_report_reports_the_end(stage: Stage):
    first = HostState(stage.state_dir, run=RUN, host=0)
    assert first.open()
    first.mark_started("boot-1", 1)
    ended = Report(run=RUN, host=0, phase=HostPhase.EXITED, exit_code=5)
    first.keep_outcome(ended)
    first.close()
    stage.start(stage.host())
    assert stage.final() == ended


@pytest.mark.parametrize("reported", [False, True], ids=["kept on its disk", "in the bucket"])
def test_what_a_shut_down_host_could_not_store_of_its_log_follows_when_it_boots_again(stage: Stage, reported: bool):
    first = HostState(stage.state_dir, run=RUN, host=0)
    assert first.open()
    first.mark_started("boot-1", 1)
    ended = Report(run=RUN, host=0, phase=HostPhase.STOPPED, exit_code=143)
    first.keep_outcome(ended)
    first.close()
    leave_in_spool(first, "last words")
    if reported:
        stage.memory.put(keys.report(RUN, 0), protocol.sign(ended, KEY).to_bytes(), generation=0)
    stage.start(stage.host())
    until(stage.log)
    assert stage.log() == ["stdout F last words"]
    assert stage.final() == ended


def test_a_final_report_is_never_taken_back(stage: Stage, tmp_path: Path):
    stage.order(f"echo x >> {tmp_path}/ran; exit 4")
    stage.start(stage.host()).join(20.0)
    before = stage.memory.head(keys.report(RUN, 0)).generation
    # A VM that was made anew has an empty disk and another boot.
    stage.start(stage.host(boot="boot-2", state_dir=tmp_path / "new disk")).join(20.0)
    assert stage.memory.head(keys.report(RUN, 0)).generation == before
    assert (tmp_path / "ran").read_text() == "x\n"


def test_a_host_that_was_made_anew_while_its_slice_ran_does_not_run(stage: Stage, tmp_path: Path):
    stage.memory.put(
        keys.claim(RUN, KEY.claim_tag), protocol.sign(Claim(run=RUN, boot_id="boot-of-0"), KEY).to_bytes(), generation=0
    )
    running = protocol.sign(Report(run=RUN, host=1, boot_id="boot-1", phase=HostPhase.RUNNING), KEY)
    stage.memory.put(keys.report(RUN, 1), running.to_bytes(), generation=0)
    stage.run(f"touch {tmp_path}/ran", host=stage.host(worker=1, hosts=2, on_vm=True, boot="boot-2"))
    report = stage.final(1)
    assert (report.phase, report.error) == (HostPhase.FAILED, "HostRestarted")
    assert not (tmp_path / "ran").exists()


def test_on_the_bastion_the_agent_leaves_after_its_last_word_and_on_a_vm_it_stays(stage: Stage, tmp_path: Path):
    stage.order()
    on_bastion = stage.start(stage.host())
    on_bastion.join(20.0)
    assert not on_bastion.is_alive()
    stage.memory = MemoryStore()
    stage.store = FaultyStore(stage.memory)
    stage.order()
    on_vm = stage.start(stage.host(on_vm=True, state_dir=tmp_path / "vm"))
    stage.final()
    on_vm.join(0.2)
    assert on_vm.is_alive()


def test_a_host_that_is_shut_down_ends_its_command_and_says_so(stage: Stage):
    stage.order("echo up; sleep 60")
    host = stage.host()
    thread = stage.start(host)
    until(lambda: "stdout F up" in stage.log())
    host.shut_down()
    thread.join(20.0)
    assert stage.report().phase is HostPhase.STOPPED
    assert stage.report().error == "HostShutDown"
    assert command_processes() == []


def test_a_command_that_got_the_shut_downs_signal_a_moment_before_its_agent_did_not_fail(stage: Stage, monkeypatch):
    monkeypatch.setattr(execution, "SHUTDOWN_SIGNAL_SECONDS", 10.0)
    stage.order("echo up; kill -TERM $$")
    host = stage.host()
    stage.start(host)
    until(lambda: stage.phase() is HostPhase.RUNNING and not command_processes())
    host.shut_down()
    assert (stage.final().phase, stage.final().exit_code) == (HostPhase.STOPPED, 143)


@pytest.mark.parametrize(
    ("env", "message"),
    [({"X": "a\0b"}, "null"), ({"X": "x" * 200_000}, "too long"), ({"A=B": "x"}, "name")],
)
def test_a_command_that_cannot_be_started_fails_by_name_and_says_why_in_the_log(stage: Stage, env, message: str):
    stage.run("true", env=env)
    report = stage.final()
    assert (report.phase, report.error) == (HostPhase.FAILED, "HostFailed")
    assert message in report.message
    assert "bastion: the command could not be started" in stage.log()[0]


def test_the_log_says_first_which_variables_were_overridden(stage: Stage):
    stage.run("echo $BASTION_JOB", env={"BASTION_JOB": "other"})
    stage.final()
    assert stage.log() == [
        "stderr F bastion: bastion overrides these variables of the job: BASTION_JOB",
        "stdout F job",
    ]


def test_the_command_starts_in_an_empty_folder_without_input(stage: Stage):
    stage.run("ls -A; cat; echo end")
    assert stage.final().exit_code == 0
    assert stage.log() == ["stdout F end"]


def test_a_second_agent_of_a_live_host_does_nothing(stage: Stage):
    stage.run("echo up; sleep 60")
    until(lambda: stage.phase() is HostPhase.RUNNING and "stdout F up" in stage.log())
    assert stage.host().run() == 75
    assert stage.phase() is HostPhase.RUNNING


def test_a_node_whose_bucket_never_answers_powers_itself_off(stage: Stage):
    stage.store = FaultyStore(stage.memory, before=1.0)
    off = threading.Event()
    stage.start(stage.host(on_vm=True, power_off=off.set))
    assert off.wait(20.0)
