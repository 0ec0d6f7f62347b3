"""A job's code and its setup on a host: fetched, verified, unpacked, set up once, and whose fault it is."""

from __future__ import annotations

import hashlib
import logging
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bastion.agent.code import job_needs
from bastion.client.code import bundle
from bastion.core.bucket.protocol import HostPhase
from bastion.core.errors import AccessDenied, NotFound, Refused, StoreUnavailable
from tests.support.waiting import until
from tests.support.worker_stage import RUN, Stage, command_processes

URL = "gs://team/code.tar.gz"


def packed(folder: Path, **files: str) -> bytes:
    """A bundle of files; `__` is a slash, `_dot_` a point."""
    folder.mkdir()
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return bundle.pack(folder).data


def serve(stage: Stage, data: bytes) -> str:
    """Lets hosts fetch it; returns its digest."""
    stage.fetch = {URL: data}.__getitem__
    return hashlib.sha256(data).hexdigest()


def env_dir(stage: Stage) -> Path:
    return stage.state_dir / f"{RUN}.0" / "job" / "env"


def test_the_command_runs_in_the_tree_of_its_code(stage: Stage, tmp_path: Path) -> None:
    digest = serve(stage, packed(tmp_path / "src", lib__m_dot_py="x = 42", data_dot_txt="hello\n"))
    stage.run("cat data.txt; python3 -c 'from lib import m; print(m.x)'", code=URL, code_sha256=digest)
    assert (stage.final().phase, stage.final().exit_code) == (HostPhase.EXITED, 0)
    assert stage.log() == ["stdout F hello", "stdout F 42"]
    # Nothing asked for a setup, so there is none.
    assert not env_dir(stage).exists()


def test_code_that_a_client_put_anywhere_needs_no_digest(stage: Stage, tmp_path: Path) -> None:
    serve(stage, packed(tmp_path / "src", a="1"))
    stage.run("ls", code=URL)
    assert stage.final().exit_code == 0
    assert stage.log() == ["stdout F a"]


def raises(error: Exception) -> Callable[[str], bytes]:
    def fetch(_url: str) -> bytes:
        raise error

    return fetch


@pytest.mark.parametrize("error", [NotFound("x"), AccessDenied("x"), Refused("x")], ids=lambda e: type(e).__name__)
def test_code_that_cannot_be_had_is_the_users_to_mend(stage: Stage, error: Exception) -> None:
    stage.fetch = raises(error)
    stage.run("echo ran", code=URL)
    report = stage.final()
    assert (report.phase, report.error, report.exit_code) == (HostPhase.FAILED, "BundleMissing", 66)
    assert stage.log() == [f"stderr F bastion: {report.message}"]


def test_code_that_is_not_what_was_ordered_never_runs(stage: Stage, tmp_path: Path) -> None:
    serve(stage, packed(tmp_path / "src", a="1"))
    stage.run("echo ran", code=URL, code_sha256="0" * 64)
    assert (stage.final().error, stage.final().exit_code) == ("BundleInvalid", 66)
    assert "is damaged: its SHA-256 is" in stage.final().message
    assert "stdout F ran" not in stage.log()


def test_code_that_is_no_archive_is_told_and_leaves_nothing(stage: Stage) -> None:
    serve(stage, b"PK\x03\x04")
    stage.run("echo ran", code=URL)
    assert stage.final().error == "BundleInvalid"
    assert "cannot be unpacked: it is a zip file" in stage.final().message
    assert not [path for path in (stage.state_dir / f"{RUN}.0").iterdir() if path.name.startswith("work")]


def test_a_bucket_that_does_not_answer_is_asked_until_it_does(stage: Stage, tmp_path: Path, caplog) -> None:
    data = packed(tmp_path / "src", a="1")
    answers = iter([StoreUnavailable("down"), StoreUnavailable("down"), None])

    def fetch(_url: str) -> bytes:
        error = next(answers)
        if error is not None:
            raise error
        return data

    stage.fetch = fetch
    stage.order("ls", code=URL)
    with caplog.at_level(logging.WARNING):
        stage.start(stage.host())
        assert stage.final().exit_code == 0
    assert caplog.text.count("could not be fetched") == 2


def test_a_stop_order_is_obeyed_while_the_code_is_fetched(stage: Stage) -> None:
    fetching, go = threading.Event(), threading.Event()

    def fetch(_url: str) -> bytes:
        fetching.set()
        go.wait(20)
        return b""

    stage.fetch = fetch
    stage.run("echo ran", code=URL)
    assert fetching.wait(20)
    until(lambda: stage.phase() is HostPhase.PREPARING)
    stage.order(stop="cancelled", grace=20.0)
    report = stage.final()
    go.set()
    assert (report.phase, report.exit_code, report.message) == (HostPhase.STOPPED, None, "cancelled")


def test_a_disk_that_refuses_is_not_the_users_fault(stage: Stage, tmp_path: Path) -> None:
    serve(stage, packed(tmp_path / "src", a="1"))
    (stage.state_dir / f"{RUN}.0" / "job").mkdir(parents=True)
    (stage.state_dir / f"{RUN}.0" / "job" / "work.new").write_text("a file in the way")
    stage.run("echo ran", code=URL)
    assert (stage.final().error, stage.final().exit_code) == ("HostFailed", None)


def test_a_setup_runs_once_in_the_tree_and_its_output_is_in_the_log(stage: Stage, tmp_path: Path) -> None:
    serve(stage, packed(tmp_path / "src", a="1"))
    stage.run("cat a made", code=URL, setup="echo begun; echo 2 > made; echo oops >&2")
    assert stage.final().exit_code == 0
    log = stage.log()
    assert log[0] == "stderr F bastion: setup: echo begun; echo 2 > made; echo oops >&2"
    assert sorted(log[1:3]) == ["stderr F oops", "stdout F begun"]
    assert "".join(line[9:] for line in log[3:]) == "12"


def test_a_setup_that_fails_is_named_with_its_exit_code_and_the_command_does_not_run(stage: Stage) -> None:
    stage.run("echo ran", setup="echo no such package >&2; exit 3")
    report = stage.final()
    assert (report.phase, report.error, report.exit_code) == (HostPhase.FAILED, "SetupFailed", 3)
    assert "the setup (echo no such package >&2; exit 3) exited with code 3" in report.message
    assert stage.log()[1:] == ["stderr F no such package", f"stderr F bastion: {report.message}"]


def test_a_stop_order_ends_a_setup_and_all_it_started(stage: Stage) -> None:
    stage.run("echo ran", setup="(setsid sleep 60 &); echo up; sleep 60")
    # The report and the log are stored by a thread each.
    until(lambda: stage.phase() is HostPhase.PREPARING and "stdout F up" in stage.log())
    stage.order(stop="preempted")
    report = stage.final()
    assert (report.phase, report.message, report.error) == (HostPhase.STOPPED, "preempted", "")
    assert command_processes() == []


def test_what_a_setup_leaves_running_does_not_live_on_beside_the_command(stage: Stage) -> None:
    stage.run("true", setup="sleep 60 > /dev/null 2>&1 &")
    assert stage.final().exit_code == 0
    assert command_processes() == []


def test_an_empty_setup_installs_nothing_although_the_code_names_packages(stage: Stage, tmp_path: Path) -> None:
    serve(stage, packed(tmp_path / "src", requirements_dot_txt="no-such-package==1\n"))
    stage.run("echo ran", code=URL, setup="")
    assert (stage.final().exit_code, stage.log()) == (0, ["stdout F ran"])


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A package that can be installed without an index."""
    path = tmp_path / "wheels" / "nowhere_else-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as file:
        info = "nowhere_else-1.0.dist-info"
        file.writestr("nowhere_else.py", "name = 'installed'\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: nowhere-else\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path


IMPORTS = "python3 -c 'import nowhere_else, sys; print(nowhere_else.name, sys.prefix)'"


def offline(wheel: Path) -> dict[str, str]:
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent), "PIP_CONFIG_FILE": "/dev/null"}


def test_requirements_are_installed_into_an_environment_of_the_jobs_own(
    stage: Stage, tmp_path: Path, wheel: Path
) -> None:
    serve(stage, packed(tmp_path / "src", requirements_dot_txt="nowhere-else==1.0\n"))
    # The packages of the Python that is on the path are seen as well.
    stage.run(f"{IMPORTS}; python3 -c 'import pydantic'", code=URL, env=offline(wheel))
    assert stage.final().exit_code == 0, stage.log()
    assert stage.log() == [
        "stderr F bastion: setup: python3 -m pip install -q -r requirements.txt",
        f"stdout F installed {env_dir(stage)}",
    ]
    with pytest.raises(ModuleNotFoundError):
        __import__("nowhere_else")


def test_a_project_can_be_imported_where_it_lies_with_what_it_depends_on_and_its_programs(
    stage: Stage, tmp_path: Path, wheel: Path
) -> None:
    project = """
        [project]
        name = "mine"
        version = "1"
        dependencies = ["nowhere-else>=1.0 ; python_version >= '3.8'", "pydantic"]
        [project.scripts]
        mine = "mine.app:Main.run"
        "../../evil" = "mine.app:run"
        [build-system]
        requires = ["no-such-backend"]
        build-backend = "no_such_backend"
    """
    app = (
        "import sys, nowhere_else\nclass Main:\n    def run():\n        print(nowhere_else.name, sys.argv); return 5\n"
    )
    serve(stage, packed(tmp_path / "src", pyproject_dot_toml=project, src__mine__app_dot_py=app))
    stage.run("cd /; mine a 'b c'", code=URL, env=offline(wheel))
    assert stage.final().exit_code == 5, stage.log()
    assert stage.log()[-1] == "stdout F installed ['mine', 'a', 'b c']"


def test_a_project_that_depends_on_nothing_needs_no_pip(stage: Stage, tmp_path: Path) -> None:
    serve(stage, packed(tmp_path / "src", pyproject_dot_toml="[project]\nname = 'm'\n", src__m_dot_py="x = 7"))
    stage.run("python3 -c 'import m; print(m.x)'", code=URL, env={"PIP_CONFIG_FILE": "/dev/null"})
    assert stage.final().exit_code == 0, stage.log()
    assert stage.log()[-1] == "stdout F 7"


@pytest.mark.parametrize(
    "files", [{"pyproject_dot_toml": "[tool.x]\n"}, {"setup_dot_py": ""}], ids=["tool", "setup.py"]
)
def test_settings_of_tools_are_no_project(stage: Stage, tmp_path: Path, files: dict[str, str]) -> None:
    serve(stage, packed(tmp_path / "src", **files))
    stage.run("echo ran", code=URL)
    assert (stage.final().exit_code, stage.log()) == (0, ["stdout F ran"])


@pytest.mark.parametrize(
    "text",
    ["[project", "[project]\ndependencies = 'x'\n", "a = " + "[" * 10_000],
    ids=["no TOML", "no list", "brackets without end"],
)
def test_a_project_that_cannot_be_read_fails_the_setup(stage: Stage, tmp_path: Path, text: str) -> None:
    serve(stage, packed(tmp_path / "src", pyproject_dot_toml=text))
    stage.run("echo ran", code=URL)
    assert (stage.final().error, stage.final().exit_code) == ("SetupFailed", 66)
    assert "pyproject.toml" in stage.final().message


def test_what_cannot_be_installed_fails_the_setup_and_the_log_says_what(stage: Stage, tmp_path: Path, wheel) -> None:
    serve(stage, packed(tmp_path / "src", requirements_dot_txt="nowhere-else==2.0\n"))
    stage.run("echo ran", code=URL, env=offline(wheel))
    report = stage.final()
    assert (report.error, report.exit_code) == ("SetupFailed", 1)
    assert "--setup= to install nothing" in report.message
    assert any("nowhere-else==2.0" in line for line in stage.log())


def test_pip_in_a_setup_of_ones_own_installs_into_the_environment_too(stage: Stage, wheel: Path) -> None:
    stage.run(IMPORTS, setup="pip install -q nowhere-else", env=offline(wheel))
    assert stage.final().exit_code == 0, stage.log()
    assert stage.log()[-1] == f"stdout F installed {env_dir(stage)}"


def test_a_setup_without_python_on_the_path_may_do_without(stage: Stage) -> None:
    stage.order("echo $PATH", setup="echo set up", env={"PATH": "/nonexistent"})
    host = stage.host(on_vm=True)
    stage.start(host)
    assert stage.final().exit_code == 0, stage.log()
    assert "stdout F set up" in stage.log()


def test_the_next_try_finds_the_code_the_environment_and_what_the_last_one_left(
    stage: Stage, tmp_path: Path, wheel: Path
) -> None:
    serve(stage, packed(tmp_path / "src", requirements_dot_txt="nowhere-else==1.0\n", a="1"))
    stage.run("touch left; exit 1", code=URL, env=offline(wheel), most=2, host=stage.host(on_vm=True))
    assert stage.final().exit_code == 1
    stage.fetch = raises(NotFound("gone meanwhile"))
    stage.order(restart="again", number=2, most=2)
    until(lambda: stage.waits_for(2))
    stage.order(f"ls; {IMPORTS}", code=URL, env=offline(wheel), number=2, most=2)
    assert stage.final(number=2).exit_code == 0, stage.log()
    names = ["stdout F a", "stdout F left", "stdout F requirements.txt"]
    assert stage.log()[-4:] == [*names, f"stdout F installed {env_dir(stage)}"]


@pytest.mark.parametrize(
    ("needs", "met"),
    [
        (["pytest"], True),
        (["pytest>=1", "Pydantic < 99", "no-such-package; python_version < '3'"], True),
        (["pytest>=999"], False),
        (["no-such-package"], False),
        (["pytest[extra]"], False),
        (["pytest @ file:///x.whl"], False),
        (["-r", "requirements.txt"], True),
        (["-r", "options.txt"], False),
        (["-r", "missing.txt"], False),
        (["not a requirement"], False),
    ],
)
def test_pip_is_asked_only_for_what_is_not_installed(tmp_path: Path, monkeypatch, needs: list[str], met: bool) -> None:
    monkeypatch.chdir(tmp_path)
    Path("requirements.txt").write_text("# tests\npytest>=1  # any\n\npydantic\n")
    Path("options.txt").write_text("--index-url=x\npytest\n")
    assert (job_needs.main(needs) == 0) is met


def test_what_is_installed_already_costs_no_pip(stage: Stage, tmp_path: Path) -> None:
    serve(stage, packed(tmp_path / "src", requirements_dot_txt="pytest\n"))
    # Where pip would fail at once.
    stage.run("echo ran", code=URL, env={"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INPUT": "nonsense"})
    assert stage.final().exit_code == 0, stage.log()
    assert stage.log()[-1] == "stdout F ran"
