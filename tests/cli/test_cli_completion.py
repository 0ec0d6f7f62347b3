"""`bastion completion`: the script in a real bash, and the words that it asks for."""

from __future__ import annotations

import shlex
import subprocess

import pytest


@pytest.fixture
def script(run, tmp_path) -> str:
    path = tmp_path / "bastion.bash"
    path.write_text(run("completion", "bash", code=0).out)
    return str(path)


@pytest.fixture
def complete(script, tmp_path):
    """What bash offers for a command line, and what it asked for; `bastion` answers with the words given."""

    def offered(*words: str, answer: str = "") -> tuple[list[str], list[str]]:
        asked = tmp_path / "asked"
        asked.write_text("")
        text = f"""
            bastion() {{ echo "$*" >> {asked}; printf '%s\\n' {shlex.quote(answer)}; }}
            source {script}
            COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}
            _bastion
            printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, cwd=tmp_path)
        return done.stdout.split(), asked.read_text().splitlines()

    return offered


@pytest.mark.parametrize(
    ("words", "asked", "offer"),
    [
        (("bastion", "why", "tr"), "completion words jobs", ["train-1"]),
        (("bastion", "logs", "-f", "tr"), "completion words jobs", ["train-1"]),
        (("bastion", "cancel", "other", "tr"), "completion words live", ["train-1"]),
        (("bastion", "list", "--project", "=", "tr"), "completion words projects", ["train-1"]),
        (("bastion", "launch", "--instance-type", "="), "completion words types", ["train-1", "alpha"]),
    ],
)
def test_names_of_the_bastion_are_asked_for(complete, words, asked, offer) -> None:
    assert complete(*words, answer="train-1\nalpha") == (offer, [asked])


def test_commands_and_flags_are_offered_without_starting_bastion(complete) -> None:
    assert complete("bastion", "wh") == (["why"], [])
    assert complete("bastion", "quota", "wh") == (["whatif"], [])
    flags, asked = complete("bastion", "list", "--m")
    assert "--mine" in flags
    assert asked == []


def test_words_are_jobs_projects_users_and_types(run, bastion) -> None:
    bastion.submit("job")
    bastion.submit("other", user="bob", project="b")
    bastion.settle(4)
    assert run("completion", "words", "live", code=0).out.split() == ["job", "other"]
    assert run("completion", "words", "users", code=0).out.split() == ["alice", "bob"]
    assert {"a", "b"} <= set(run("completion", "words", "projects", code=0).out.split())
    assert "tpu-v4-8" in run("completion", "words", "types", code=0).out.split()
    assert "requires one of jobs, live" in run("completion", "words", "nonsense", code=64).err


def test_a_hostile_name_is_not_offered_to_the_shell(run, bastion) -> None:
    for name in ("$(touch x)", "`id`", "a b", "<(id)"):
        bastion.put_spec(name, b"{}")
    bastion.submit("job")
    bastion.settle(4)
    for kind in ("live", "jobs"):
        assert run("completion", "words", kind, code=0).out.split() == ["job"]
