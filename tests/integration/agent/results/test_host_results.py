"""What a host stores of its command's results: real commands on a store in memory."""

import sys

import pytest

from bastion.core import limits
from bastion.core.bucket import keys, result_proofs
from bastion.core.bucket.protocol import HostPhase
from bastion.core.bucket.results import HostResults
from bastion.core.errors import InvalidDocument, NotFound
from bastion.core.run_keys import RunKey
from bastion.testing.faulty_store import FaultyStore
from tests.support.waiting import until
from tests.support.worker_stage import KEY, RUN, Stage

UID = "abcdefghij"
SECOND = f"{UID}-2"


THEIRS = RunKey(b"t" * 32)
PLACE = keys.results("job", UID, 0)


def stored(stage: Stage) -> HostResults | None:
    """What readers believe."""
    try:
        return result_proofs.read(PLACE, stage.memory.get(PLACE).data, lambda _: KEY.public)
    except (NotFound, InvalidDocument):
        return None


def forge(stage: Stage, data: bytes) -> None:
    meta = stage.memory.head(PLACE)
    stage.memory.put(PLACE, data, generation=0 if meta is None else meta.generation)


def kept(stage: Stage) -> HostResults:
    found = stored(stage)
    assert found is not None
    return found


def line(value: float, step: int | None = None) -> str:
    told = "" if step is None else f', "step": {step}'
    return f'{{"metric": "m", "value": {value}{told}}}'


def write(*lines: str) -> str:
    return "printf '%s\\n' " + " ".join(f"'{each}'" for each in lines) + ' >> "$BASTION_RESULTS_FILE"'


def test_a_command_that_measures_nothing_costs_no_request_and_no_process(stage: Stage):
    stage.run("echo $BASTION_RESULTS_FILE; test ! -e $BASTION_RESULTS_FILE")
    assert stage.final().exit_code == 0
    assert stored(stage) is None
    assert not [key for key in stage.counting.written if "results" in key]


def test_lines_and_mllog_lines_are_stored_with_the_environment_before_the_last_report(stage: Stage):
    event = ':::MLLOG {"key": "eval_accuracy", "value": 0.7}'
    stage.run(
        f"{write(line(1, 1), 'no JSON')}; echo '{event}'; echo '3: {event}' >&2",
        env={"XLA_FLAGS": "--xla_x=1", "OMP_NUM_THREADS": "2", "NCCL_API_KEY": "k", "HOME_PLANET": "x"},
    )
    assert stage.final().exit_code == 0
    found = kept(stage)
    assert (found.attempt, found.try_number, found.exit_code) == (1, 1, 0)
    assert found.lines == [line(1, 1), "no JSON"]
    assert found.mllog == [event, event]
    assert (found.truncated, found.problems) == (False, [])
    here = found.environment
    assert here.variables == {"OMP_NUM_THREADS": "2", "XLA_FLAGS": "--xla_x=1"}
    assert here.python == f"CPython {sys.version.split()[0]}"
    assert here.libraries["numpy"]
    assert "CPU" in here.processor
    assert here.place
    written = stage.counting.written
    assert written.index(keys.results("job", UID, 0)) < len(written) - 1
    assert written[-1] == keys.report(RUN, 0)


def test_the_next_try_begins_with_no_file_and_what_it_measures_counts(stage: Stage):
    command = f"test ! -e $BASTION_RESULTS_FILE || exit 9; {write(line(1))}; exit 3"
    stage.run(command, most=2, host=stage.host(on_vm=True))
    stage.final()
    assert (kept(stage).try_number, kept(stage).exit_code) == (1, 3)
    stage.order(restart="worker 0 exited with 3", number=2, most=2)
    until(lambda: stage.waits_for(2))
    stage.order(f"test ! -e $BASTION_RESULTS_FILE || exit 9; {write(line(2))}", number=2, most=2)
    assert stage.final(number=2).exit_code == 0
    assert (kept(stage).try_number, kept(stage).exit_code, kept(stage).lines) == (2, 0, [line(2)])


def test_a_stopped_attempt_stores_what_it_measured_and_the_next_one_takes_its_place(stage: Stage):
    stage.run(
        f"{write(line(1))}; trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done", host=stage.host(on_vm=True)
    )
    until(lambda: "stdout F up" in stage.log())
    stage.order(stop="evicted")
    assert stage.final().phase is HostPhase.STOPPED
    assert (kept(stage).lines, kept(stage).exit_code) == ([line(1)], None)
    other = stage.state_dir / "other"
    stage.run(write(line(2)), run=SECOND, host=stage.host(on_vm=True, run=SECOND, state_dir=other))
    assert stage.final(run=SECOND).exit_code == 0
    assert (kept(stage).lines, kept(stage).attempt) == ([line(2)], 2)


def test_a_late_host_of_an_earlier_attempt_replaces_nothing(stage: Stage):
    later = HostResults(attempt=20, try_number=1, exit_code=1, lines=[line(2)])
    data = result_proofs.to_bytes(later, PLACE, RunKey(b"l" * 32))  # whose key this host does not know
    forge(stage, data)
    stage.order(run=f"{UID}-20")
    stage.run(write(line(1)))
    assert stage.final().exit_code == 0
    assert stage.memory.get(PLACE).data == data


@pytest.mark.parametrize(
    "forged",
    [
        result_proofs.to_bytes(HostResults(attempt=1, try_number=9, exit_code=0, lines=["forged"]), PLACE, THEIRS),
        HostResults(attempt=1, try_number=9, exit_code=0, lines=["forged"]).to_bytes(),
        # Of an attempt that there is not: nobody but the daemon writes its order.
        result_proofs.to_bytes(HostResults(attempt=20, try_number=9, exit_code=0), PLACE, THEIRS),
        b"x" * (limits.RESULTS_DOCUMENT_MAX_BYTES + 1),
        b"not ours",
    ],
    ids=["signed", "unsigned", "later", "large", "other"],
)
def test_who_writes_first_or_over_it_changes_nothing_while_the_host_lives(stage: Stage, forged: bytes):
    forge(stage, forged)
    stage.run(write(line(1)), host=stage.host(on_vm=True, beat_seconds=0.1))
    assert stage.final().exit_code == 0
    assert kept(stage).lines == [line(1)]
    forge(stage, forged)
    until(lambda: stored(stage) is not None)
    assert kept(stage).lines == [line(1)]
    stage.memory.delete(PLACE, generation=stage.memory.get(PLACE).meta.generation)
    until(lambda: stored(stage) is not None)
    assert kept(stage).lines == [line(1)]


def test_proved_results_of_an_earlier_attempt_that_ended_well_stay_and_forged_ones_do_not(stage: Stage):
    well = HostResults(attempt=1, try_number=1, exit_code=0, lines=[line(1)])
    forge(stage, result_proofs.to_bytes(well, PLACE, KEY))
    stage.run(f"{write(line(2))}; exit 3", run=SECOND, host=stage.host(run=SECOND))
    assert stage.final(run=SECOND).exit_code == 3
    assert kept(stage) == well
    forge(stage, result_proofs.to_bytes(well, PLACE, THEIRS))
    third = f"{UID}-3"
    stage.run(f"{write(line(3))}; exit 3", run=third, host=stage.host(run=third))
    assert stage.final(run=third).exit_code == 3
    assert (kept(stage).lines, kept(stage).attempt) == ([line(3)], 3)


def test_the_agent_that_follows_a_dead_one_stores_what_the_command_measured(stage: Stage):
    stage.run(f"{write(line(1))}; echo ':::MLLOG {{}}'; echo up; sleep 60", host=stage.host(on_vm=True))
    until(lambda: "stdout F up" in stage.log())
    (folder,) = [each for each in stage.state_dir.iterdir() if each.name.startswith(UID)]
    state = stage.state_dir / "copy"
    state.mkdir()
    # The disk as a killed agent leaves it.
    (state / folder.name / "job").mkdir(parents=True)
    for name in ("started-1", "job/results", "mllog"):
        (state / folder.name / name).write_bytes((folder / name).read_bytes())
    stage.start(stage.host(on_vm=True, state_dir=state))
    until(lambda: stored(stage) is not None)
    assert (kept(stage).lines, kept(stage).mllog, kept(stage).exit_code) == ([line(1)], [":::MLLOG {}"], None)


@pytest.mark.parametrize(
    ("thing", "told"),
    [
        ("mkdir", "is a folder, not a plain file"),
        ("mkfifo", "is a named pipe, not a plain file"),
        ("ln -s /etc/passwd", "is a symbolic link, not a plain file"),
    ],
)
def test_what_is_no_file_in_place_of_the_results_file_is_told_and_harms_no_job(stage: Stage, thing: str, told: str):
    stage.run(f'{thing} "$BASTION_RESULTS_FILE"')
    assert stage.final().exit_code == 0
    assert kept(stage).lines == []
    assert told in kept(stage).problems[0]
    assert any(told in each for each in stage.log())


def test_of_a_hundred_megabytes_the_first_are_stored_and_the_log_says_what_is_not(stage: Stage):
    stage.run('yes \'{"metric": "m", "value": 1}\' | head -c 100000000 > "$BASTION_RESULTS_FILE"')
    assert stage.final().exit_code == 0
    assert len(kept(stage).lines) == limits.RESULTS_MAX_LINES
    assert kept(stage).truncated
    assert "100000000 bytes" in kept(stage).problems[0]
    assert any("line 10001 and all after it are dropped" in each for each in stage.log())


@pytest.mark.parametrize("python", ["exec sleep 60", "yes", "echo '[1'", "exit 3"])
def test_a_python_that_is_none_costs_the_libraries_and_not_the_results(
    stage: Stage, monkeypatch, tmp_path, python: str
):
    monkeypatch.setattr(limits, "RESULTS_ASK_SECONDS", 0.5)
    (tmp_path / "python3").write_text(f"#!/bin/sh\n{python}\n")
    (tmp_path / "python3").chmod(0o755)
    stage.run(f"{write(line(1))}; {tmp_path}/python3 --version >/dev/null & sleep 0.1; kill $!; true")
    assert stage.final().exit_code == 0
    assert kept(stage).lines == [line(1)]
    assert kept(stage).problems == [f"{tmp_path}/python3 did not say which libraries it has"]
    assert kept(stage).environment.libraries == {}


def test_a_host_that_shuts_down_stores_its_lines_without_asking_for_libraries(stage: Stage):
    host = stage.host(on_vm=True)
    stage.run(f"{write(line(1))}; echo up; sleep 60", host=host)
    until(lambda: "stdout F up" in stage.log())
    host.shut_down()
    until(lambda: stored(stage) is not None)
    assert (kept(stage).lines, kept(stage).exit_code) == ([line(1)], None)
    assert kept(stage).problems == ["the host had no time left to ask which libraries the command's Python has"]


def test_a_bucket_that_does_not_answer_holds_the_report_and_then_gets_the_results(stage: Stage):
    store: FaultyStore = stage.store
    stage.run(f"{write(line(1))}; echo up; until test -e {stage.state_dir}/go; do sleep 0.02; done")
    until(lambda: "stdout F up" in stage.log())
    store.before = 1.0
    (stage.state_dir / "go").touch()
    until(lambda: stage.phase() is HostPhase.RUNNING)
    store.before = 0.0
    assert stage.final().exit_code == 0
    assert kept(stage).lines == [line(1)]


def test_a_cleanup_command_stores_no_results(stage: Stage):
    run = f"{UID}-cleanup"
    stage.run(write(line(1)), run=run, host=stage.host(run=run))
    assert stage.final(run=run).exit_code == 0
    assert stored(stage) is None
