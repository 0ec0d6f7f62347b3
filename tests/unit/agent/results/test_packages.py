"""Which Python a command line runs."""

from pathlib import Path

import pytest

from bastion.agent.results.packages import interpreter_of


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("bin/python3", "bin/python3.11", "work/env/bin/python", "bin/torchrun"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python3 train.py", "bin/python3"),
        ("cd x && OMP_NUM_THREADS=2 python3.11 -u a.py", "bin/python3.11"),
        ("env/bin/python train.py", "work/env/bin/python"),
        ("torchrun train.py", "bin/python3"),
        ("echo 'no end", "bin/python3"),
        ("/none/python a.py", "bin/python3"),
    ],
)
def test_the_first_python_of_the_command_is_asked_and_else_the_one_on_its_path(place: Path, command: str, found: str):
    assert interpreter_of(command, str(place / "bin"), place / "work") == str(place / found)


def test_a_path_without_any_has_none(place: Path):
    assert interpreter_of("ls", str(place / "work"), place) == ""
