"""Only the two commands of a finisher are taken for this package's own: they run with the agent's rights."""

from __future__ import annotations

import pytest

from bastion.core import benchmark_steps
from bastion.core.benchmark_steps import Lines, Step, parse
from bastion.core.errors import InvalidDocument

ROOT = "gs://team/t-bastion"
RUN = "20260102T030405Z-0123abcd"
BEGIN = f"exec python3 -I -m bastion.cli.main benchmark begin matmul/{RUN} --root={ROOT}"


@pytest.mark.parametrize("what", ["begin", "finish"])
@pytest.mark.parametrize("root", [ROOT, "/srv/a folder/t-bastion", "/srv/it's/t-bastion", "s3://b/$(x)-bastion"])
def test_what_is_made_is_recognized(what: benchmark_steps.What, root: str) -> None:
    step = Step(what=what, name="mat.mul_1-a", run=RUN)
    assert parse(step.command(root), root) == step
    assert step.arguments(root)[-1] == f"--root={root}"


@pytest.mark.parametrize(
    "command",
    [
        "true",
        BEGIN + " ",
        BEGIN + "\n",
        " " + BEGIN,
        BEGIN + "; id",
        BEGIN + "\nid",
        BEGIN + " --user_id=alice",
        BEGIN + "$(id)",
        BEGIN.replace("exec ", ""),
        BEGIN.replace("exec ", "exec  "),
        BEGIN.replace("python3", "./python3"),
        BEGIN.replace(" -I", ""),
        BEGIN.replace("-I", "-i"),
        BEGIN.replace("begin", "run"),
        BEGIN.replace("begin", "begin finish"),
        BEGIN.replace("bastion.cli.main", "bastion.cli_main"),
        BEGIN.replace("matmul/", "matmul/../other/"),
        BEGIN.replace("matmul", "MATMUL"),
        BEGIN.replace("matmul", "'matmul'"),
        BEGIN.replace("matmul", "-x"),
        BEGIN.replace("matmul/", ""),
        BEGIN.replace(RUN, RUN + "x"),
        BEGIN.replace(RUN, RUN.replace("2026", "２０２６")),
        BEGIN.replace("--root=", "--root "),
        BEGIN.replace(ROOT, f"'{ROOT}'"),
        BEGIN.replace(ROOT, f'"{ROOT}"'),
        BEGIN.replace(ROOT, "gs://attacker/t-bastion"),
        BEGIN.replace(ROOT, f"{ROOT} --root=gs://attacker/t-bastion"),
        BEGIN.replace("--root", "--bastion=x --root"),
        "PYTHONPATH=. " + BEGIN,
        f"id; {BEGIN}",
    ],
)
def test_nothing_else_is(command: str) -> None:
    assert parse(BEGIN, ROOT) is not None
    assert parse(command, ROOT) is None


def test_the_finishers_name_is_of_its_run() -> None:
    assert benchmark_steps.finisher("matmul", RUN) != benchmark_steps.finisher("matmul", RUN.replace("0123", "0124"))
    assert benchmark_steps.finisher("matmul", RUN).startswith("matmul-")


def test_lines_are_read_as_they_were_written_and_nothing_else_is_taken_for_them() -> None:
    lines = Lines(user="1:1", folder="/x", variables={"A": "ä\n"})
    assert Lines.read(lines.to_bytes()) == lines
    assert "ä" not in repr(lines)
    for data in (b"", b"{}", b"[]", lines.to_bytes()[:-1], lines.to_bytes()[:-1] + b',"more":1}'):
        with pytest.raises(InvalidDocument, match="is not the agent's"):
            Lines.read(data)
