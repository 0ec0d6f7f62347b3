"""The wording of generated messages is reviewed: each one of the core and the daemon has a line in a golden file."""

from __future__ import annotations

from tests.golden.messages import templates as messages


def test_every_generated_message_stands_in_the_golden_file() -> None:
    expected = messages.GOLDEN.read_text("utf-8")
    assert messages.render() == expected, "a message changed: run templates.py in this folder and review the diff"


def test_a_new_message_needs_a_line() -> None:
    assert messages.templates('"""Doc string here."""\nx = f"worker {host} did {what} badly"\ny = "wire-name"\n') == [
        "worker {host} did {what} badly"
    ]


def test_a_text_inside_a_field_is_a_message_of_its_own() -> None:
    source = "x = f\"{'on the bastion' if b else n} is starting up\""
    assert messages.templates(source) == ["{...} is starting up", "on the bastion"]
