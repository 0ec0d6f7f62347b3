"""Every source of secrets gives whole values, or says what to do, and never shows one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.adapters.secrets.files import FileSecrets
from bastion.adapters.secrets.pod_secrets import PodSecrets
from bastion.adapters.secrets.secret_manager import SecretManagerSecrets
from bastion.adapters.secrets.variables import VariableSecrets
from bastion.core import limits
from bastion.core.errors import SecretUnreadable
from bastion.ports import SecretSource
from tests.support.secret_manager_server import SecretManagerServer, Token, serving

# A source with one value, and where it is.
Make = Callable[[str], tuple[SecretSource, str]]


@pytest.fixture(scope="module")
def secret_manager() -> Iterator[SecretManagerServer]:
    with serving() as service:
        yield service


@pytest.fixture(params=["file", "env", "sm", "k8s"])
def make(request: pytest.FixtureRequest, tmp_path: Path, secret_manager: SecretManagerServer) -> Make:
    def a_file(value: str) -> tuple[SecretSource, str]:
        path = tmp_path / "key"
        path.write_bytes(os.fsencode(value))
        return FileSecrets(), str(path)

    def a_variable(value: str) -> tuple[SecretSource, str]:
        return VariableSecrets({"KEY": value}), "KEY"

    def a_version(value: str) -> tuple[SecretSource, str]:
        secret_manager.versions = {"KEY": [(os.fsencode(value), "ENABLED")]}
        return SecretManagerSecrets(endpoint=secret_manager.endpoint, log_in=Token), "//our-team/KEY"

    def a_mounted_key(value: str) -> tuple[SecretSource, str]:
        (tmp_path / "wandb").mkdir(exist_ok=True)
        (tmp_path / "wandb" / "api-key").write_bytes(os.fsencode(value))
        return PodSecrets(str(tmp_path)), "secret/wandb/api-key"

    return {"file": a_file, "env": a_variable, "sm": a_version, "k8s": a_mounted_key}[str(request.param)]


@pytest.mark.parametrize("value", ["x", " a b ", "two\nlines", "é", "\udcff", "$HOME", "y" * limits.SECRET_MAX_BYTES])
def test_the_value_comes_as_it_is(make: Make, value: str) -> None:
    source, where = make(value)
    assert source.read(where) == value


@pytest.mark.parametrize("value", ["", "a\0b", "z" * (limits.SECRET_MAX_BYTES + 1), "é" * limits.SECRET_MAX_BYTES])
def test_what_a_variable_cannot_have_is_refused_without_showing_it(make: Make, value: str) -> None:
    source, where = make(value)
    with pytest.raises(SecretUnreadable) as raised:
        source.read(where)
    assert where.rpartition("/")[2] in str(raised.value)
    assert ";" in str(raised.value)
    assert not value or value[:2] not in str(raised.value).replace(where, "")


def test_a_value_that_is_not_there_says_what_to_do(make: Make) -> None:
    source, where = make("x")
    with pytest.raises(SecretUnreadable, match=r"; (put|set) it there|; create it"):
        source.read(where + "-2")


def test_a_later_value_is_read_anew(make: Make) -> None:
    assert make("first")[0].read(make("first")[1]) == "first"
    source, where = make("second")
    assert source.read(where) == "second"


@pytest.mark.parametrize(
    ("content", "value"), [("x\n", "x"), ("x\r\n", "x"), ("x\n\n", "x\n"), ("x\r", "x\r"), ("\nx", "\nx")]
)
def test_one_line_end_of_a_file_is_not_part_of_the_value(tmp_path: Path, content: str, value: str) -> None:
    (tmp_path / "key").write_bytes(content.encode())
    assert FileSecrets().read(str(tmp_path / "key")) == value


def test_the_longest_value_may_be_followed_by_a_line_end(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"x" * limits.SECRET_MAX_BYTES + b"\r\n")
    assert len(FileSecrets().read(str(tmp_path / "key"))) == limits.SECRET_MAX_BYTES


def test_a_file_of_only_a_line_end_is_empty(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\n")
    with pytest.raises(SecretUnreadable, match="is empty"):
        FileSecrets().read(str(tmp_path / "key"))


def test_a_link_is_followed_as_in_a_mounted_secret(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "key").write_text("x")
    (tmp_path / "key").symlink_to("..data/key")
    assert FileSecrets().read(str(tmp_path / "key")) == "x"


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "loop"])
def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "key"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    else:
        path.symlink_to(path)
    with pytest.raises(SecretUnreadable, match=r"not a regular file|cannot be read"):
        FileSecrets().read(str(path))


def test_bastions_own_variables_are_not_for_jobs() -> None:
    with pytest.raises(SecretUnreadable, match="Bastion's own"):
        VariableSecrets({"BASTION_AGENT": "token"}).read("BASTION_AGENT")


def test_a_host_that_is_no_pod_says_what_to_use() -> None:
    with pytest.raises(SecretUnreadable, match="is for pods of a cluster, and this host is none; use sm: or file:"):
        PodSecrets("").read("secret/wandb/api-key")


def test_a_key_that_is_not_mounted_says_how_to_create_it(tmp_path: Path) -> None:
    with pytest.raises(SecretUnreadable) as raised:
        PodSecrets(str(tmp_path)).read("secret/wandb/api-key")
    assert str(raised.value) == (
        "the Secret wandb in the namespace of the job's pods has no key api-key, or does not exist; create it: "
        "`kubectl create secret generic wandb --from-file=api-key=FILE`"
    )


def test_a_mounted_key_that_cannot_be_opened_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "api-key").symlink_to("api-key")  # also for root
    with pytest.raises(SecretUnreadable, match=r"cannot be read: .*; set run_as_user in the pod"):
        PodSecrets(str(tmp_path)).read("secret/wandb/api-key")
