"""A job's secrets reach its command, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from bastion.adapters.secrets.secret_manager import SecretManagerSecrets
from bastion.core import limits
from bastion.core.bucket import host_errors, keys
from bastion.core.bucket.protocol import HostPhase
from bastion.core.errors import EXIT_REFUSED, SecretUnavailable
from tests.support.secret_manager_server import Token, serving
from tests.support.waiting import until
from tests.support.worker_stage import Stage

VALUE = "v4lue-of-the-secret"


@pytest.fixture
def reference(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(VALUE + "\n")
    return f"file:{path}"


def test_the_command_and_its_setup_have_the_values(stage: Stage, reference: str) -> None:
    check = f'test "$A" = {VALUE} && test "$B" = "of the agent"'
    stage.run(
        f"{check} && echo it does", setup=check, secrets={"A": reference, "B": "env:TOKEN"}, host=stage.host(on_vm=True)
    )
    assert stage.final().exit_code == 0
    assert "stdout F it does" in stage.log()


def test_nothing_on_the_hosts_disk_and_in_the_bucket_has_the_value(
    stage: Stage, reference: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    stage.run("echo up; sleep 0.5; exit 3", secrets={"A": reference}, host=stage.host(on_vm=True), output_dir="out")
    until(lambda: "stdout F up" in stage.log())
    stage.final()
    for meta in stage.memory.list(""):
        assert VALUE.encode() not in stage.memory.get(meta.key).data, meta.key
    for path in stage.state_dir.rglob("*"):
        assert not path.is_file() or VALUE.encode() not in path.read_bytes(), path
    assert VALUE not in caplog.text


def test_a_missing_secret_is_the_users_failure_before_code_and_setup(stage: Stage, tmp_path: Path) -> None:
    stage.run(
        "echo never",
        secrets={"A": f"file:{tmp_path}/none"},
        code="gs://nowhere/code.tar",
        setup="echo never",
        most=3,
        host=stage.host(on_vm=True),
    )
    report = stage.final()
    assert (report.phase, report.error, report.exit_code) == (
        HostPhase.FAILED,
        host_errors.SECRET_UNREADABLE,
        EXIT_REFUSED,
    )
    assert report.message.startswith(f"secret A: the file {tmp_path}/none on the host does not exist; put it there")
    assert stage.log() == [f"stderr F bastion: {report.message}"]


def test_a_source_that_a_host_does_not_know_is_named(stage: Stage) -> None:
    stage.run(secrets={"A": "vault:name"}, host=stage.host(on_vm=True))
    assert (
        "secret A: this host knows no source vault:, only env:, file:, k8s:, sm:; use one of these"
        in stage.final().message
    )


def test_a_later_try_reads_the_value_anew(stage: Stage, reference: str) -> None:
    stage.run('echo "$A" | rev; exit 1', secrets={"A": reference}, most=2, host=stage.host(on_vm=True))
    stage.final()
    Path(reference.removeprefix("file:")).write_text("second")
    stage.order(restart="again", number=2, most=2, secrets={"A": reference})
    until(lambda: stage.waits_for(2))
    stage.order('echo "$A" | rev', number=2, most=2, secrets={"A": reference})
    assert stage.final(number=2).exit_code == 0
    assert "stdout F dnoces" in stage.log()


def test_a_variable_of_bastion_wins_and_the_log_says_so(stage: Stage, reference: str) -> None:
    stage.run("true", secrets={"TPU_WORKER_ID": reference}, host=stage.host(on_vm=True))
    assert stage.final().exit_code == 0
    assert "stderr F bastion: bastion overrides these variables of the job: TPU_WORKER_ID" in stage.log()


def test_the_order_has_the_reference(stage: Stage, reference: str) -> None:
    stage.run("true", secrets={"A": reference}, host=stage.host(on_vm=True))
    stage.final()
    order = stage.memory.get(keys.order("abcdefghij-1")).data
    assert reference.encode() in order


def test_more_secrets_than_a_process_can_have_are_the_users_failure(stage: Stage, tmp_path: Path) -> None:
    """Each may be as large as this; the kernel would refuse to start the command."""
    large = tmp_path / "large"
    large.write_text("s" * limits.SECRET_MAX_BYTES)
    secrets = {f"A{number}": f"file:{large}" for number in range(limits.SECRETS_MAX)}
    stage.run("true", secrets=secrets, host=stage.host(on_vm=True))
    report = stage.final()
    assert (report.phase, report.error) == (HostPhase.FAILED, host_errors.SECRET_UNREADABLE)
    assert report.message == (
        "the 32 secrets are larger than 1024 KiB together, too large for variables; let the command read the files"
    )


def test_as_many_secrets_as_are_allowed_reach_the_command(stage: Stage, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_text("s" * limits.SECRET_MAX_BYTES)
    number = limits.SECRETS_MAX_BYTES // limits.SECRET_MAX_BYTES
    secrets = {f"A{each}": f"file:{large}" for each in range(number)}
    stage.run(f"test ${{#A{number - 1}}} = {limits.SECRET_MAX_BYTES}", secrets=secrets, host=stage.host(on_vm=True))
    assert stage.final().exit_code == 0


@dataclass
class _Service:
    """A source that is first not reachable."""

    failures: int

    def read(self, where: str) -> str:
        if self.failures:
            self.failures -= 1
            raise SecretUnavailable(f"{where}: the service does not answer; trying again")
        return VALUE


def test_a_service_that_does_not_answer_is_waited_for_and_why_says_so(stage: Stage) -> None:
    stage.secrets = {"sm": _Service(failures=2)}
    stage.run(f'test "$A" = {VALUE}', secrets={"A": "sm://our-team/key"}, host=stage.host(on_vm=True))
    assert stage.final().exit_code == 0
    waiting = "waiting for an answer: secret A: //our-team/key: the service does not answer; trying again"
    assert f"stderr F bastion: {waiting}" in stage.log()


def test_a_stop_ends_the_wait_for_a_secret(stage: Stage) -> None:
    stage.secrets = {"sm": _Service(failures=10**6)}
    stage.run("echo never", secrets={"A": "sm://our-team/key"}, host=stage.host(on_vm=True))
    until(lambda: (report := stage.report()) is not None and "the service does not answer" in report.message)
    stage.order("echo never", stop="cancelled", secrets={"A": "sm://our-team/key"})
    assert stage.final().phase is HostPhase.STOPPED
    assert not any("never" in line for line in stage.log())


def test_secret_manager_gives_the_command_its_value_and_nothing_else_has_it(stage: Stage, tmp_path: Path) -> None:
    with serving() as service:
        service.add("key", VALUE.encode() + b"\n")
        stage.secrets = {"sm": SecretManagerSecrets(endpoint=service.endpoint, log_in=Token)}
        check = 'echo "$A" | rev; ! tr "\\0" "\\n" < /proc/$PPID/environ | grep -q "^A="'
        stage.run(check, secrets={"A": "sm://our-team/key"}, host=stage.host(on_vm=True))
        assert stage.final().exit_code == 0
    assert f"stdout F {VALUE[::-1]}" in stage.log()
    for meta in stage.memory.list(""):
        assert VALUE.encode() not in stage.memory.get(meta.key).data, meta.key
