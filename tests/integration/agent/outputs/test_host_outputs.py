"""A host's output folder over several runs of its job: real commands on a store in memory."""

import pytest

from bastion.agent.host_state import HostState
from bastion.core import limits
from bastion.core.bucket import keys, outputs
from bastion.core.bucket.manifest_proofs import ManifestProofs
from bastion.core.bucket.protocol import HostPhase, Report
from tests.support.waiting import until
from tests.support.worker_stage import KEY, RUN, Stage

UID = "abcdefghij"
SECOND, THIRD = f"{UID}-2", f"{UID}-3"


def manifests(stage: Stage, worker: int = 0) -> list[outputs.Manifest]:
    folder = keys.outputs("job", UID, worker)
    return [outputs.read(stage.memory.get(meta.key).data) for meta in stage.memory.list(f"{folder}manifest-")]


def test_a_file_that_a_stopped_command_saved_is_there_in_the_next_attempt(stage: Stage):
    stage.run(
        "trap 'echo 41 > $BASTION_OUTPUT_DIR/step; exit 0' TERM; echo up; while :; do sleep 0.05; done",
        output_dir="out",
        host=stage.host(on_vm=True),
    )
    until(lambda: "stdout F up" in stage.log())
    stage.order(stop="evicted", output_dir="out")
    assert stage.final().phase is HostPhase.STOPPED
    (manifest,) = manifests(stage)
    assert list(manifest.files) == ["step"]

    stage.run(
        "cat out/step",
        output_dir="out",
        run=SECOND,
        host=stage.host(on_vm=True, run=SECOND, state_dir=stage.state_dir / "other"),
    )
    assert stage.final(run=SECOND).exit_code == 0
    assert stage.log(run=SECOND) == [
        f"stderr F bastion: restored outputs of {UID}-1: 1 file, 3 bytes (sync {manifest.seq})",
        "stdout F 41",
    ]


def test_a_command_begins_without_outputs_in_its_first_attempt_and_stores_them_when_it_ends(stage: Stage):
    stage.run(
        'test -d "$BASTION_OUTPUT_DIR" && ls out; echo 1 > out/a; mkdir out/b',
        output_dir="out",
        host=stage.host(on_vm=True),
    )
    assert stage.final().exit_code == 0
    manifest = manifests(stage)[-1]  # one before it may hold what there was between the two commands
    assert (list(manifest.files), manifest.folders, manifest.run) == (["a"], ("b",), f"{UID}-1")
    assert stage.log() == []


def test_outputs_stay_from_try_to_try_and_go_on_being_stored(stage: Stage):
    stage.run("echo $BASTION_TRY >> out/tries; exit 3", most=2, output_dir="out", host=stage.host(on_vm=True))
    stage.final()
    stage.order(restart="worker 0 exited with 3", number=2, most=2, output_dir="out")
    until(lambda: stage.waits_for(2))
    stage.order("echo $BASTION_TRY >> out/tries; cat out/tries", number=2, most=2, output_dir="out")
    assert stage.final(number=2).exit_code == 0
    assert [line for line in stage.log() if "stdout" in line] == ["stdout F 1", "stdout F 2"]
    assert [manifest.files["tries"].size for manifest in manifests(stage)] == [2, 4]


@pytest.mark.parametrize("setup", ["echo > out", "ln -s nowhere out"])
def test_a_file_in_the_place_of_the_output_folder_fails_the_job_and_not_the_host(stage: Stage, setup: str):
    stage.run("echo ran", setup=setup, output_dir="out", host=stage.host(on_vm=True))
    report = stage.final()
    assert (report.phase, report.error, report.exit_code) == (HostPhase.FAILED, "SetupFailed", 66)
    assert "the output folder out cannot be created: the job has a file in its place" in report.message


def test_a_command_that_replaces_its_output_folder_by_a_file_fails_its_next_try(stage: Stage):
    stage.run("rmdir out; echo > out; exit 3", most=2, output_dir="out", host=stage.host(on_vm=True))
    stage.final()
    stage.order(restart="worker 0 exited with 3", number=2, most=2, output_dir="out")
    until(lambda: stage.waits_for(2))
    stage.order("echo ran", number=2, most=2, output_dir="out")
    report = stage.final(number=2)
    assert (report.error, report.exit_code) == ("SetupFailed", 66)


def test_with_worker0_every_host_begins_with_what_host_0_stored(stage: Stage):
    command = 'cat out/mine; echo "$BASTION_HOST_INDEX" > out/mine'
    for run in (f"{UID}-1", SECOND, THIRD):
        sync = "each" if run == SECOND else "worker0"
        stage.order(command, output_dir="out", output_sync=sync, run=run)
        for worker in (0, 1):
            folder = stage.state_dir / run / str(worker)
            stage.start(stage.host(on_vm=True, worker=worker, hosts=2, run=run, state_dir=folder))
        for worker in (0, 1):
            assert stage.final(worker, run=run).exit_code == 0
    for run, expected in ((SECOND, ["0", "1"]), (THIRD, ["0", "0"])):
        said = [stage.log(worker, run=run)[-1] for worker in (0, 1)]
        assert said == [f"stdout F {text}" for text in expected]


def test_a_save_that_the_command_tells_of_is_stored_long_before_its_end(stage: Stage):
    stage.run(
        'echo 7 > out/step; touch "$BASTION_CHECKPOINT_FILE"; while :; do sleep 0.05; done',
        output_dir="out",
        host=stage.host(on_vm=True),
    )
    until(lambda: [manifest for manifest in manifests(stage) if "step" in manifest.files])
    until(lambda: stage.phase() is HostPhase.RUNNING)  # stored by another thread than the outputs
    stage.order(stop="cancelled", output_dir="out", grace=0.1)
    stage.final()


def test_what_cannot_be_stored_is_told_in_the_log_and_the_report(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(limits, "OUTPUT_FINAL_SECONDS", 0.3)
    stage.order("echo 1 > out/a; ln -s /etc out/away", output_dir="out")
    manifest = keys.outputs("job", UID, 0) + "manifest-"
    for number in range(1, 100):
        stage.store.fail_next("put", key=f"{manifest}{number:010d}", times=100)
    stage.start(stage.host(on_vm=True))
    report = stage.final()
    assert report.exit_code == 0
    assert report.message.startswith("some outputs could not be stored: ")
    (line,) = stage.log()
    assert line.startswith("stderr F bastion: some outputs could not be stored: ")


def test_what_is_no_file_of_the_folder_is_named_in_the_log(stage: Stage):
    stage.run("echo 1 > out/a; ln -s /etc out/away", output_dir="out", host=stage.host(on_vm=True))
    assert stage.final().exit_code == 0
    assert stage.log() == ["stderr F bastion: not stored: away (points to an absolute path)"]


def test_an_agent_that_died_after_its_command_stores_its_outputs_when_it_is_back(stage: Stage):
    state = HostState(stage.state_dir, run=RUN, host=0)
    assert state.open()
    state.mark_started("boot-1", 1)
    state.mark_prepared()
    (state.work_dir / "out").mkdir(parents=True)
    (state.work_dir / "out" / "result").write_text("42")
    state.keep_outcome(Report(run=RUN, host=0, boot_id="boot-1", phase=HostPhase.EXITED, exit_code=0, try_number=1))
    state.close()
    stage.run("true", output_dir="out", host=stage.host(on_vm=True))
    assert stage.final().exit_code == 0
    assert list(manifests(stage)[-1].files) == ["result"]


def test_a_stop_that_comes_while_outputs_are_restored_ends_the_host(stage: Stage):
    stage.order("true", output_dir="out")
    stage.store.fail_next("list", key=keys.outputs("job", UID, 0) + "manifest-", times=10_000)
    stage.start(stage.host(on_vm=True))
    until(lambda: stage.phase() is HostPhase.PREPARING)
    stage.order(stop="cancelled", output_dir="out")
    report = stage.final()
    assert report.phase is HostPhase.STOPPED
    assert report.started_at == ""


def test_a_manifest_that_names_what_no_store_could_hold_is_passed_over(stage: Stage):
    long = outputs.Part(object=f"0000000001/files/{'x' * 2000}", size=1, sha256="0" * 64)
    file = outputs.StoredFile(mode=0o644, mtime_ns=0, parts=(long,))
    manifest = outputs.Manifest(run=f"{UID}-1", seq=1, files={"x": file})
    folder = keys.outputs("job", UID, 0)
    proved = ManifestProofs(place=folder).to_bytes(manifest, KEY)
    stage.memory.put(folder + outputs.manifest_name(1), proved, generation=0)
    stage.run("echo ran", output_dir="out", run=SECOND, host=stage.host(on_vm=True, run=SECOND))
    assert stage.final(run=SECOND).exit_code == 0
    assert "skipping outputs: manifest-0000000001" in stage.log(run=SECOND)[0]
