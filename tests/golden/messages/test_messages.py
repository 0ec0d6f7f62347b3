"""Every message of the scheduler, its simulations and the quota file stands in a golden file.

`BASTION_GOLDEN=rewrite` writes the files anew.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler import ReasonCode
from tests.golden.messages import passes, quota_changes, quota_files, simulations

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[2]
GOLDEN = {
    "scheduler": passes.text,
    "quota": quota_files.text,
    "quota_changes": quota_changes.text,
    "simulations": simulations.text,
}
# Modules whose texts are messages.
MODULES = {
    "scheduler": (
        "scheduler/one_pass.py",
        "quota/permissions.py",
        "scheduler/decide/admission.py",
        "scheduler/decide/delegation.py",
        "scheduler/decide/elastic.py",
        "scheduler/decide/recall.py",
        "scheduler/decide/shares.py",
        "scheduler/explain/dependents.py",
        "scheduler/explain/reasons.py",
        "scheduler/explain/waits.py",
    ),
    "quota": ("quota/reading.py", "quota/rules_reading.py", "quota/members.py", "quota/matching.py", "quota/admins.py"),
    "quota_changes": ("quota/diff.py", "quota/describe_rules.py", "quota/summary.py"),
    "simulations": (
        "scheduler/simulation/forecast.py",
        "scheduler/simulation/future.py",
        "scheduler/simulation/policy_change.py",
        "scheduler/simulation/replay/trace.py",
    ),
}
# Texts that are no messages.
SILENT = {
    "quota": {"it is not valid Unicode", r" \(at line (\d+), column (\d+)\)\Z| \(at end of document\)\Z"},
}


@pytest.mark.parametrize(("name", "written"), GOLDEN.items())
def test_messages_are_those_of_the_golden_file(name: str, written: Callable[[], str]) -> None:
    if name == "quota" and sys.version_info < (3, 11):
        pytest.skip("this version of Python has no possessive patterns")
    path = FOLDER / f"{name}.txt"
    if os.environ.get("BASTION_GOLDEN") == "rewrite":
        path.write_text(written(), "utf-8")
    assert written() == path.read_text("utf-8")


@pytest.mark.parametrize("name", GOLDEN)
def test_every_text_of_a_message_has_a_line(name: str) -> None:
    golden = (FOLDER / f"{name}.txt").read_text("utf-8")
    missing = {part for path in MODULES[name] for part in texts(ROOT / path) if part not in golden}
    assert missing == SILENT.get(name, set())


def test_every_reason_that_the_scheduler_gives_has_a_line() -> None:
    golden = (FOLDER / "scheduler.txt").read_text("utf-8")
    source = "".join(path.read_text("utf-8") for path in (ROOT / "scheduler").rglob("*.py"))
    given = {code for code in ReasonCode if f"ReasonCode.{code.name}" in source}
    assert {code for code in ReasonCode if f" waits: {code.value}: " in golden} == given


def texts(path: Path) -> Iterator[str]:
    """The literal parts of the strings of a module that are at least two words, docstrings aside."""
    tree = ast.parse(path.read_text("utf-8"))
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and isinstance(node.body[0], ast.Expr)
    }
    asserted = {id(node.msg) for node in ast.walk(tree) if isinstance(node, ast.Assert)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if (
            isinstance(text, str)
            and id(node) not in docstrings | asserted
            and re.search(r"[a-z] [a-z]", text)
            and "\n" not in text
        ):
            yield text
