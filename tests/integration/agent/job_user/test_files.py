"""What a job plants for its agent: links, swapped folders, closed folders. The agent has no more rights there."""

from __future__ import annotations

import hashlib
import io
import stat
import tarfile
from pathlib import Path

import pytest

from bastion import job_user
from bastion.adapters.secrets.files import FileSecrets
from bastion.adapters.secrets.pod_secrets import PodSecrets
from bastion.agent.command_user import CommandUser
from bastion.agent.host_state import HostState
from bastion.core.bucket import host_errors, keys, outputs, results
from bastion.core.bucket.protocol import InputOrder
from bastion.job_user import JobUser
from tests.support.waiting import until
from tests.support.worker_stage import RUN, Stage

UID = RUN.partition("-")[0]


def stored(stage: Stage) -> list[bytes]:
    """Everything in the bucket."""
    return [stage.memory.get(meta.key).data for meta in stage.memory.list("")]


def newest(stage: Stage) -> outputs.Manifest | None:
    folder = keys.outputs("job", UID, 0)
    found = sorted(meta.key for meta in stage.memory.list(folder + outputs.MANIFEST_PREFIX))
    return outputs.read(stage.memory.get(found[-1]).data) if found else None


def test_outputs_of_a_folder_that_became_a_link_to_roots_are_not_stored(shared: Stage, secret: Path) -> None:
    """`work` is the job's to rename: the agent finds root's folder there, which has an `out` too."""
    shared.run(
        f"echo mine > out/mine; mv $PWD $PWD.was; ln -s {secret.parent.parent} $PWD.new; mv -T $PWD.new $PWD; true",
        output_dir="out",
    )
    assert shared.final().exit_code == 0
    assert not any(b"the key" in data for data in stored(shared))


def test_a_folder_swapped_to_and_fro_while_it_is_stored_gives_nothing_of_roots(shared: Stage, secret: Path) -> None:
    """The job changes `work` between its own folder and root's as fast as it can, for some syncs."""
    swap = (
        "import ctypes, os, time\n"
        "libc = ctypes.CDLL(None)\n"
        "up = os.path.dirname(os.getcwd()).encode()\n"
        f"os.symlink({str(secret.parent.parent)!r}, up + b'/other')\n"
        "open('out/key', 'w').write('mine')\n"
        "end = time.monotonic() + 1.5\n"
        "while time.monotonic() < end:\n"
        "    libc.renameat2(-100, up + b'/work', -100, up + b'/other', 2)\n"
        "    open(os.environ['BASTION_CHECKPOINT_FILE'], 'w').close()\n"
    )
    shared.run('python3 -c "$SWAP"', env={"SWAP": swap}, output_dir="out")
    assert shared.final().exit_code == 0, shared.log()
    assert not any(b"the key" in data for data in stored(shared))


@pytest.mark.parametrize("how", ["ln -s {secret} out/key", "ln {secret} out/key"])
def test_a_link_to_a_file_of_roots_in_the_outputs_is_not_read(shared: Stage, secret: Path, how: str) -> None:
    # So that the name can be linked at all; the file stays closed.
    secret.parent.chmod(0o711)
    secret.parent.parent.chmod(0o711)
    shared.run(f"{how.format(secret=secret)}; echo mine > out/mine", output_dir="out")
    assert shared.final().exit_code == 0
    manifest = newest(shared)
    assert manifest is not None
    assert list(manifest.files) == ["mine"]
    assert not any(b"the key" in data for data in stored(shared))


def test_results_through_a_link_or_a_swapped_folder_are_not_roots(shared: Stage, secret: Path) -> None:
    (secret.parent / "results").write_text('{"the key": 1}')
    shared.run(f"ln -s {secret.parent}/results $BASTION_RESULTS_FILE; ln -sfn {secret.parent} ../work2")
    assert shared.final().exit_code == 0
    assert not any(b"the key" in data for data in stored(shared))
    document = results.read(shared.memory.get(keys.results("job", UID, 0)).data)
    assert document.lines == []


def test_the_reason_to_stop_lands_nowhere_else(shared: Stage, secret: Path) -> None:
    shared.run(f"ln -s {secret} $BASTION_PREEMPT_FILE; echo up; sleep 600")
    until(lambda: "stdout F up" in shared.log())
    shared.order(stop="cancelled", grace=0.2)
    shared.final()
    assert secret.read_text() == "the key"


def test_restored_outputs_belong_to_the_job_and_follow_no_link(shared: Stage, user: JobUser, secret: Path) -> None:
    shared.run("mkdir out/a; echo kept > out/a/b; chmod 750 out/a/b", output_dir="out")
    assert shared.final().exit_code == 0
    run = f"{UID}-2"
    shared.order("stat -c '%u %a' out/a/b; cat out/a/b", run=run, output_dir="out")
    # As code that is unpacked before could have it.
    state = HostState(shared.state_dir, run=run, host=0, is_shared=True)
    assert state.open()
    state.close()
    state.make_job_dir(user)
    with state.files():
        state.work_dir.mkdir()
        (state.work_dir / "out").symlink_to(secret.parent)
    shared.start(shared.host(on_vm=True, run=run, command_user=CommandUser(user=user)))
    assert shared.final(run=run).error == host_errors.HOST_FAILED or shared.final(run=run).exit_code
    assert [path.name for path in secret.parent.iterdir()] == ["key"]
    run = f"{UID}-3"
    shared.order("stat -c '%u %a' out/a/b; cat out/a/b", run=run, output_dir="out")
    shared.start(shared.host(on_vm=True, run=run, command_user=CommandUser(user=user)))
    assert shared.final(run=run).exit_code == 0, shared.log(run=run)
    assert [line for line in shared.log(run=run) if "stdout" in line] == [f"stdout F {user.uid} 750", "stdout F kept"]


def test_code_and_inputs_belong_to_the_job_and_the_cache_does_not(shared: Stage, user: JobUser, public: Path) -> None:
    data = public / "data"
    (data / "deep").mkdir(parents=True)
    (data / "deep" / "a").write_bytes(b"1234")
    data.chmod(0o700)
    code = io.BytesIO()
    with tarfile.open(fileobj=code, mode="w") as tar:
        member = tarfile.TarInfo("main.sh")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"ls\n"))
    packed = code.getvalue()
    shared.fetch = lambda _url: packed
    cache = public / "cache"
    host = shared.host(
        on_vm=True, command_user=CommandUser(user=user), input_cache=str(cache), input_cache_bytes=1 << 20
    )
    shared.order(
        "stat -c %u main.sh in/deep in/deep/a; echo changed > in/deep/a",
        code="/code.tar",
        code_sha256=hashlib.sha256(packed).hexdigest(),
        setup="",
        inputs=[InputOrder(url=str(data), dir="in")],
    )
    shared.start(host)
    assert shared.final().exit_code == 0, shared.log()
    assert [line for line in shared.log() if "stdout" in line] == [f"stdout F {user.uid}"] * 3
    kept = [path for path in (cache / "objects").rglob("*") if path.is_file()]
    assert {path.stat().st_uid for path in (cache, *kept)} == {0}
    assert kept
    assert kept[0].read_bytes().startswith(b"1234")


def test_a_secret_is_read_with_the_rights_of_the_command(shared: Stage, secret: Path) -> None:
    shared.secrets = {"file": FileSecrets()}
    shared.run("echo ran", secrets={"KEY": f"file:{secret}"})
    report = shared.final()
    assert report.error == host_errors.SECRET_UNREADABLE
    assert "Permission denied" in report.message


def test_a_key_that_is_mounted_for_the_agent_reaches_the_command_which_cannot_read_the_file(
    shared: Stage, secret: Path
) -> None:
    shared.secrets = {"k8s": PodSecrets(str(secret.parent.parent))}
    shared.run(f'test "$KEY" = "the key" && ! cat {secret}', secrets={"KEY": "k8s:secret/out/key"})
    assert shared.final().exit_code == 0, shared.log()


def test_the_files_of_a_job_go_whatever_it_closed(public: Path, user: JobUser, secret: Path) -> None:
    state = HostState(public / "state", run=RUN, host=0, is_shared=True)
    assert state.open()
    state.make_job_dir(user)
    with state.files():
        (state.work_dir / "a" / "b").mkdir(parents=True)
        (state.work_dir / "a" / "b" / "file").touch()
        (state.work_dir / "link").symlink_to(secret.parent)
        (state.work_dir / "a" / "b").chmod(0)
        (state.work_dir / "a").chmod(0)
        state.job_dir.chmod(0)
    state.discard_work()
    until(lambda: not any(path.name.startswith(("job", "discarded")) for path in state.folder.iterdir()))
    assert secret.read_text() == "the key"
    assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
    state.close()


def test_a_folder_of_another_user_is_not_used(public: Path, user: JobUser) -> None:
    state = HostState(public / "state", run=RUN, host=0, is_shared=True)
    assert state.open()
    state.make_job_dir(user)
    with pytest.raises(PermissionError, match=f"belongs to user {user.uid}"):
        state.make_job_dir(None)
    with pytest.raises(PermissionError, match=f"belongs to user {user.uid}"):
        state.make_job_dir(job_user.by_numbers(user.uid + 1, user.gid))
    state.close()


def test_rights_are_of_one_thread_and_end_with_the_context(secret: Path, user: JobUser) -> None:
    with user.files():
        with pytest.raises(PermissionError):
            secret.read_text()
        with user.files(), pytest.raises(PermissionError):
            secret.read_text()
        with pytest.raises(PermissionError):
            secret.read_text()
    assert secret.read_text() == "the key"
