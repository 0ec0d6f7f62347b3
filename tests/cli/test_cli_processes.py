"""The command line as a process of its own: what it imports, its exit codes, Ctrl-C, pipes, a folder as bucket."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bastion.testing.cluster import QUOTA

BASTION = [sys.executable, "-m", "bastion.cli.main"]
_HEAVY = (
    "google",
    "grpc",
    "jax",
    "numpy",
    "tenacity",
    "bastion.emulators.tpu.server",
    "bastion.adapters.tpu.provisioner",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A bastion's folder with a quota file and no daemon."""
    folder = tmp_path / "bucket" / "team-bastion"
    (folder / "project-quotas").mkdir(parents=True)
    (folder / "project-quotas" / "project-quotas.config").write_bytes(QUOTA)
    return folder


def finished(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*BASTION, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["launch", "--help"], ["completion", "bash"], ["list"], ["why", "x"], ["quota", "check", "-"]],
)
def test_everyday_commands_import_nothing_heavy(root: Path, arguments: list[str]) -> None:
    program = (
        "import sys; from bastion.cli.main import main; main(sys.argv[2:]); "
        "sys.stderr.write('IMPORTED ' + ' '.join(m for m in sys.argv[1].split() if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, " ".join(_HEAVY), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "BASTION_ROOT": str(root)},
    )
    assert done.stderr.endswith("IMPORTED "), done.stderr


def test_help_loads_no_command_and_no_validation_library() -> None:
    program = (
        "import sys; from bastion.cli.main import main; main(['--help']); "
        "names = ('pydantic', 'bastion.client', 'bastion.cli.jobs.launch'); "
        "sys.stderr.write(' '.join(name for name in names if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""


def test_a_job_is_submitted_listed_and_cancelled_in_a_folder(root: Path) -> None:
    done = finished("launch", f"--root={root}", "--name=job", "--", "echo", "a b")
    assert done.returncode == 0, done.stderr
    assert json.loads((root / "jobs/active/job").read_bytes())["command"] == "echo 'a b'"
    assert "job" in finished("list", f"--root={root}").stdout
    done = finished("launch", f"--root={root}", "--name=job", "--", "x")
    assert (done.returncode, done.stdout) == (64, "")
    assert finished("cancel", f"--root={root}", "job").returncode == 0
    assert json.loads((root / "jobs/user_states/job").read_bytes())["status"] == "CANCELLING"


def test_ctrl_c_while_waiting_returns_130_and_leaves_the_job(root: Path) -> None:
    with subprocess.Popen(
        [*BASTION, "launch", f"--root={root}", "--name=job", "--wait", "--", "x"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        # Without it a message that never comes would hold up the whole suite.
        overdue = threading.Timer(60, process.kill)
        overdue.start()
        for line in process.stderr:
            if "waiting for the scheduler to pick it up" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[1]
        overdue.cancel()
    assert process.returncode == 130
    assert "detached; the job job keeps running" in rest
    assert f"bastion logs -f job --root={root}" in rest
    assert "Traceback" not in rest
    assert (root / "jobs/active/job").exists()


def test_the_suite_gives_its_programs_the_usual_sigint_though_it_was_started_without() -> None:
    """As a shell starts it in the background: what reads Ctrl-C in a test would otherwise wait for ever."""
    test = "test_programs_that_a_test_starts_get_the_usual_sigint"
    pytest_again = f'trap "" INT; exec {sys.executable} -m pytest -n 0 -q -p no:cacheprovider {__file__}::{test}'
    done = subprocess.run(["bash", "-c", pytest_again], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


def test_programs_that_a_test_starts_get_the_usual_sigint() -> None:
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"


def interrupted_import(raised: str) -> subprocess.CompletedProcess[str]:
    """`bastion version`, interrupted while it imports a module, whose import then raises `raised`."""
    program = f"""
import os, signal, sys
class SchemaError(Exception): pass
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "bastion.cli.help":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise {raised}("while it was imported")
sys.meta_path.insert(0, Interrupted())
from bastion.cli.main import main
sys.exit(main(["version"]))
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("raised", ["KeyboardInterrupt", "SchemaError"])
def test_ctrl_c_while_the_program_is_imported_shows_no_traceback(raised: str) -> None:
    """Also where pydantic, which was building a schema, made an error of its own of the interrupt."""
    done = interrupted_import(raised)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "bastion: interrupted\n")


def test_ctrl_c_hides_no_fault_of_the_program() -> None:
    done = interrupted_import("ValueError")
    assert done.returncode == 1
    assert "ValueError: while it was imported" in done.stderr


def test_a_reader_that_goes_away_is_no_error(root: Path) -> None:
    shell = f"{sys.executable} -m bastion.cli.main instance-types | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[0].startswith("NAME")
    assert done.stdout.splitlines()[1] in ("0", "141")
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_file_in_the_place_of_the_bucket_is_one_line(root: Path) -> None:
    (root.parent / "file").write_text("no folder")
    done = finished("list", f"--root={root.parent}/file/x-bastion")
    assert (done.returncode, done.stderr.count("\n")) == (64, 1)
    assert f"no such folder: {root.parent}/file" in done.stderr


def test_an_argument_that_is_not_utf_8_is_refused(root: Path) -> None:
    arguments = [*(os.fsencode(part) for part in BASTION), b"launch", b"--root=" + os.fsencode(root), b"--", b"\xff"]
    done = subprocess.run(arguments, capture_output=True, timeout=60, check=False)
    assert done.returncode == 64
    assert b"is not UTF-8 text" in done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["la"], ["launch"]),
        (["local", ""], ["up", "down", "status"]),
        (["launch", "--inst"], ["--instance_type="]),
        (["quota", "check", "--outp"], ["--output="]),
        (["launch", "--", "--inst"], []),
    ],
)
def test_the_completion_of_bash_completes(words: list[str], expected: list[str]) -> None:
    script = finished("completion", "bash").stdout
    typed = " ".join(f"'{word}'" for word in ["bastion", *words])
    program = f"{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words)}; _bastion; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == expected
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("closed", "arguments", "code"), [(">&-", "version", 0), ("2>&-", "version", 0), (">&- 2>&- <&-", "lunch", 64)]
)
def test_closed_streams_change_no_exit_code_and_are_no_error(closed: str, arguments: str, code: int) -> None:
    line = f"'{sys.executable}' -m bastion.cli.main {arguments} {closed}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, "")
