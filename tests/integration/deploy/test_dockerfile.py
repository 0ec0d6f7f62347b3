"""The image: what its Dockerfile says, and its install steps carried out in an empty virtual environment.

There is no container here, so the base image, apt and users are taken on trust. What is carried out is what breaks in
practice: the package must be installable from nothing but what COPY brings, with the dependencies it declares, and must
then run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Instruction:
    word: str
    rest: str


def parse(text: str) -> list[Instruction]:
    """The instructions in order; comments are gone, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [Instruction(word, rest.strip()) for word, _, rest in found]


DOCKERFILE = parse((REPOSITORY / "Dockerfile").read_text("utf-8"))


def last(word: str) -> str:
    return next(step.rest for step in reversed(DOCKERFILE) if step.word == word)


def environment() -> dict[str, str]:
    """What ARG (its defaults) and ENV set."""
    found = {}
    for step in DOCKERFILE:
        if step.word in ("ARG", "ENV"):
            for assignment in shlex.split(step.rest):
                name, _, value = assignment.partition("=")
                found[name] = value
    return found


def ignored(path: str) -> bool:
    """Whether .dockerignore keeps the path out; the last pattern that fits decides, a folder's holds for all in it."""
    parents = ["/".join(path.split("/")[: n + 1]) for n in range(path.count("/") + 1)]
    answer = False
    for line in (REPOSITORY / ".dockerignore").read_text("utf-8").split():
        pattern = line.removeprefix("!")
        anywhere = pattern.removeprefix("**/")
        tail = anywhere != pattern
        if any(fnmatch(parent.rpartition("/")[2] if tail else parent, anywhere) for parent in parents):
            answer = not line.startswith("!")
    return answer


def copy_context(folder: Path) -> None:
    """Does what the COPY instructions do, with `folder` for the working directory."""
    for step in DOCKERFILE:
        if step.word != "COPY":
            continue
        *sources, target = step.rest.split()
        for source in sources:
            origin = REPOSITORY / source
            files = [origin] if origin.is_file() else [path for path in origin.rglob("*") if path.is_file()]
            for file in files:
                name = str(file.relative_to(REPOSITORY))
                if not ignored(name):
                    place = folder / target / (file.name if origin.is_file() else file.relative_to(origin))
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, place)


def test_the_entry_point_is_the_daemon_and_an_init_reaps_what_it_leaves() -> None:
    assert json.loads(last("ENTRYPOINT")) == ["tini", "--", "bastion", "daemon", "run"]
    assert json.loads(last("CMD")) == []
    assert environment()["BASTION_ROOT"].endswith("-bastion")


def test_the_daemon_does_not_run_as_root_and_owns_its_folders() -> None:
    assert last("USER") not in ("root", "0")
    made = next(step.rest for step in DOCKERFILE if step.word == "RUN" and "install -d" in step.rest)
    for volume in json.loads(last("VOLUME")):
        assert volume in made
    assert f"install -d -o {last('USER')} " in made


def test_what_the_image_copies_is_in_the_build_context_and_the_rest_is_not() -> None:
    copied = [source for step in DOCKERFILE if step.word == "COPY" for source in step.rest.split()[:-1]]
    assert [source for source in copied if ignored(source)] == []
    assert ignored("tests/conftest.py")
    assert ignored(".git/config")
    assert ignored("bastion/core/__pycache__/keys.cpython-311.pyc")
    assert not ignored("bastion/core/model/accelerators.csv")


def test_pip_installs_only_what_has_a_hash() -> None:
    """Each call takes wheels with locked hashes, or Bastion's own sources and nothing from an index."""
    calls = [
        call for step in DOCKERFILE if step.word == "RUN" for call in re.findall(r"pip install.*?(?=&&|$)", step.rest)
    ]
    assert len(calls) == 3
    for call in calls:
        options = set(call.split())
        assert {"--require-hashes", "--only-binary=:all:"} <= options or {"--no-index", "--no-deps"} <= options, call
    locks = REPOSITORY / "bastion" / "requirements"
    used = "".join(calls)
    assert [
        name for name in re.findall(r"requirements/(\w+)[.]lock", used) if not (locks / f"{name}.lock").exists()
    ] == []


@pytest.mark.parametrize("digest", ["", "@sha256:" + "1a" * 32, "@sha256:1a"], ids=["none", "whole", "cut"])
def test_cloud_build_wants_the_digest_of_the_base_image(tmp_path: Path, digest: str) -> None:
    steps = yaml.safe_load((REPOSITORY / "deploy" / "cloudbuild.yaml").read_text("utf-8"))["steps"]
    check, build = steps[0], steps[1]
    assert build["args"][0] == "build"
    text = (REPOSITORY / "Dockerfile").read_text("utf-8")
    (tmp_path / "Dockerfile").write_text(re.sub(r"^(FROM [^@\n]+).*$", rf"\1{digest}", text, flags=re.MULTILINE))
    arguments = [argument.replace("$$", "$") for argument in check["args"]]
    done = subprocess.run([check["entrypoint"], *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == (0 if len(digest) == 72 else 1)
    assert ("make lock-image DIGEST=sha256:..." in done.stderr) == (done.returncode == 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """The virtual environment that stands for the image, and the environment variables of a container."""

    programs: Path
    variables: dict[str, str]


def build(folder: Path) -> Image:
    """Carries out COPY and the install steps, in an empty virtual environment and an empty folder."""
    venv, context = folder / "venv", folder / "context"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    context.mkdir()
    copy_context(context)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "BASTION_"))}
    variables = kept | environment() | {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "HOME": str(folder)}
    # The one difference: a test may use what other tests have downloaded.
    cache = {"PIP_CACHE_DIR": pip_cache()}
    installing = {name: value for name, value in variables.items() if name != "PIP_NO_CACHE_DIR"} | cache
    steps = [step.rest for step in DOCKERFILE if step.word == "RUN" and "pip install" in step.rest]
    assert steps
    for step in steps:
        done = subprocess.run(
            ["sh", "-c", step], cwd=context, env=installing, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
    shutil.rmtree(context)  # from here on the installed package stands alone
    variables |= {"BASTION_HOME": str(folder / "home"), "BASTION_ROOT": str(folder / "buckets" / "team-bastion")}
    return Image(programs=venv / "bin", variables=variables)


def pip_cache() -> str:
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return asked or str(Path.home() / ".cache" / "pip")


def run(image: Image, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(image.programs / "bastion"), *arguments],
        env=image.variables,
        cwd=image.programs.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_the_install_steps_alone_make_a_bastion_that_serves_the_root_of_the_environment_until_sigterm(
    tmp_path: Path,
) -> None:
    image = build(tmp_path)
    it_is_complete(image)
    it_serves(image)


def it_is_complete(image: Image) -> None:
    version = run(image, "version")
    assert (version.returncode, version.stderr) == (0, "")
    assert version.stdout.startswith("bastion ")
    assert "daemon run" in run(image, "--help").stdout
    # Data files travel with the package, and each program's imports are declared.
    assert "tpu-v4-32" in run(image, "instance-types").stdout
    for module in (
        "bastion.wiring.agent",
        "bastion.adapters.gcs.store",
        "bastion.adapters.tpu.provisioner",
        "bastion.wiring.daemon",
    ):
        imported = subprocess.run(
            [str(image.programs / "python"), "-c", f"import {module}"],
            env=image.variables,
            cwd=image.programs.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        assert imported.returncode == 0, imported.stderr


def it_serves(image: Image) -> None:
    _init, _dashes, program, *arguments = json.loads(last("ENTRYPOINT"))
    root = Path(image.variables["BASTION_ROOT"])
    with subprocess.Popen(
        [str(image.programs / program), *arguments, "--slices=none", "--tick_seconds=0.2"],
        env=image.variables,
        cwd=image.programs.parent,
        stderr=subprocess.PIPE,
        text=True,
    ) as daemon:
        try:
            assert daemon.stderr is not None
            deadline = time.monotonic() + 60
            while not (root / "status" / "current.json").exists():
                assert daemon.poll() is None, daemon.stderr.read()
                assert time.monotonic() < deadline, "the daemon did not come up"
                time.sleep(0.05)
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(30) == 0
            assert f"ended by signal {signal.SIGTERM.value}" in daemon.stderr.read()
        finally:
            daemon.kill()
    assert json.loads((root / "lease").read_bytes())["released"] is True
