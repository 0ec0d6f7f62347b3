"""Whom a host's commands run as."""

from __future__ import annotations

import os

import pytest

from bastion import job_user
from bastion.agent import command_user
from bastion.agent.command_user import CommandUser
from bastion.agent.identity import HostIdentity
from bastion.core.bucket.protocol import AgentArguments


def identity(text: str, address: str = "") -> HostIdentity:
    arguments = AgentArguments(
        root="/b/t-bastion", bastion="t-bastion", job="job", run="abcdefghij-1", run_key="ab" * 32
    )
    return HostIdentity(
        arguments=arguments.model_copy(update={"job_user": text}), worker=0, peers=(address,) if address else ()
    )


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has all rights, and keeps them."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in ("give_nothing_to_children", "give_devices", "limit_processes"):
        monkeypatch.setattr(job_user, name, lambda *_: None)
    monkeypatch.setattr(job_user, "missing_rights", list)


def decide(text: str, *, address: str = "", emulated: bool = False, in_pod: bool = False) -> CommandUser:
    return command_user.decide(identity(text, address), emulated=emulated, in_pod=in_pod)


def test_without_a_setting_commands_run_as_the_agent() -> None:
    assert decide("") == CommandUser()


def test_a_user_by_numbers_needs_no_entry() -> None:
    found = decide("64123:64124")
    assert found.user is not None
    assert (found.user.name, found.user.uid, found.user.gid) == ("64123", 64123, 64124)


def test_in_a_pod_the_hosts_user_is_a_number() -> None:
    found = decide("bastion-job", in_pod=True)
    assert found.user is not None
    assert found.user.uid == 64000


def test_a_pod_that_is_not_root_says_who_the_command_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = decide("bastion-job", in_pod=True)
    assert (found.user, found.problem) == (None, "")
    assert found.note == "the container does not run as root: the command runs as its user, 1000"


def test_emulated_hosts_have_users_only_when_asked_and_each_its_own() -> None:
    assert decide("bastion-job", address="127.100.3.2", emulated=True) == CommandUser()
    users = [decide("64000:64000", address=f"127.100.3.{n}", emulated=True).user for n in (1, 2)]
    assert [user.uid for user in users if user] == [64000 + 3 * 256 + 1, 64000 + 3 * 256 + 2]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bastion-nobody-has-it", "this host has no user 'bastion-nobody-has-it' to run commands as; create it"),
        ("root", "commands cannot run as root: it is root, the agent itself, or no user"),
        ("0:5", "commands cannot run as 0:5"),
        ("5:0", "commands cannot run as 5:0"),
        ("4294967295:5", "commands cannot run as 4294967295:5"),
    ],
)
def test_a_user_that_cannot_be_had_is_a_problem_and_not_the_agent(text: str, said: str) -> None:
    found = decide(text)
    assert found.user is None
    assert found.problem.startswith(said)


def test_an_agent_without_the_rights_says_which_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_user, "missing_rights", lambda: ["CAP_SETUID"])
    assert "it is not root and has no CAP_SETUID; start it as root" in decide("64000:64000").problem
