"""The CLI reference is rendered from the commands, complete, and fresh."""

from __future__ import annotations

from pathlib import Path

import pytest

from bastion.cli.help import own_flags
from bastion.cli.reference import render
from bastion.cli.registry import ENTRIES, GROUPS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def test_the_reference_in_the_docs_is_fresh() -> None:
    """If this fails: `make docs`."""
    assert REFERENCE.read_text("utf-8") == render()


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES])
def test_every_command_and_flag_is_documented(name: str) -> None:
    command = next(entry for entry in ENTRIES if entry.name == name).load()
    text = REFERENCE.read_text("utf-8")
    section = text.partition(f"## bastion {name}\n")[2].partition("\n## ")[0]
    assert command.summary in section
    assert command.examples
    for flag in own_flags(command.values()):
        assert f"--{flag.name}" in section
        assert str(flag.help or "").strip(), flag.name


def test_every_group_of_the_table_is_explained_and_no_other() -> None:
    assert {entry.name.split()[0] for entry in ENTRIES if " " in entry.name} == set(GROUPS)


def test_examples_name_commands_and_flags_that_exist() -> None:
    known = [entry.name for entry in ENTRIES]
    for entry in ENTRIES:
        command = entry.load()
        for example in command.examples:
            at = example.index("bastion ") + len("bastion ")
            words = example[at:].split(" -- ")[0].rstrip('")').split()
            assert words[0] in known or " ".join(words[:2]) in known, example
            of = next(e for e in ENTRIES if e.name in (words[0], " ".join(words[:2])))
            values = of.load().values()
            for word in words:
                if word.startswith("-") and word != "-":
                    assert word.lstrip("-").partition("=")[0].replace("-", "_") in values, example
