"""`bastion cancel` by pattern and by flags: whose jobs, after what question."""

from __future__ import annotations

import io
import sys

import pytest

from bastion.core.model.lifecycle import Status


@pytest.fixture
def several(bastion):
    for name, user, project in (("mine-1", "alice", "a"), ("mine-2", "alice", "a"), ("other", "bob", "b")):
        bastion.submit(name, user=user, project=project, instance_type="tpu-v4-8")
    bastion.settle(4)
    bastion.submit("mine-new")
    return bastion


def live(bastion) -> set[str]:
    bastion.settle(10)
    return {name for name in ("mine-1", "mine-2", "mine-new", "other") if bastion.result(name) is None}


@pytest.mark.parametrize(
    ("argv", "left"),
    [
        (["--all"], {"other"}),
        (["mine-*"], {"other"}),
        (["*"], {"other"}),
        (["--mine"], {"other"}),
        (["--user=bob"], {"mine-1", "mine-2", "mine-new"}),
        (["--project=a,b"], set()),
        (["*-1", "other"], {"mine-2", "mine-new", "other"}),
        (["--status=submitted"], {"mine-1", "mine-2", "other"}),
        (["--all", "--type=tpu-v4-8"], {"mine-new", "other"}),
    ],
)
def test_flags_and_patterns_select_ones_own_jobs_unless_they_name_others(run, several, argv, left) -> None:
    run("cancel", *argv, "--yes", code=0)
    assert live(several) == left


def test_without_a_terminal_nothing_is_cancelled_unless_the_command_says_yes(run, several) -> None:
    done = run("cancel", "mine-*", code=2)
    assert "  mine-1  " in done.err
    assert "  mine-new  submitted" in done.err
    assert (
        "cancel 3 jobs of alice? There is no terminal to answer at; nothing was changed. Agree with --yes" in done.err
    )
    assert live(several) == {"mine-1", "mine-2", "mine-new", "other"}


@pytest.mark.parametrize(
    ("answer", "left"), [("y\n", {"other"}), ("n\n", None), ("\n", None), ("", None), ("yes\n", {"other"})]
)
def test_a_person_is_asked(several, on_terminal, monkeypatch, answer: str, left) -> None:
    monkeypatch.setattr(sys, "stdin", terminal_with(answer))
    shown = on_terminal("cancel", "--all")
    assert "cancel 3 jobs of alice? [y/N]" in shown
    assert live(several) == ({"mine-1", "mine-2", "mine-new", "other"} if left is None else left)


def terminal_with(answer: str) -> io.StringIO:
    stream = io.StringIO(answer)
    stream.isatty = lambda: True
    return stream


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "name the jobs to cancel, a pattern of names, --all, or flags that select jobs"),
        ([""], "the job name is empty"),
        (["--all", "mine-1"], "--all takes no names"),
        (["--user="], "--user has an empty value"),
    ],
)
def test_what_selects_nothing_or_too_much_is_refused(run, several, argv, message) -> None:
    assert message in run("cancel", *argv, "--yes", code=64).err
    assert several.status("mine-1") == Status.ACTIVE.value


def test_where_nothing_matches_it_says_so(run, several) -> None:
    assert "no live jobs match of alice; see bastion list" in run("cancel", "nothing-*", "--yes", code=0).err
