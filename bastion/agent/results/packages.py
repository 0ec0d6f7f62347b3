"""Ask the command's own Python for its version and its packages, without importing any of them.

The interpreter belongs to the job: it may hang, write without end, or not be a Python at all.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bastion.agent.child_processes import ChildProcesses
from bastion.core import documents
from bastion.job_user import JobUser

_PYTHON = re.compile(r"python[0-9.]*")
# Packages whose versions change results, by their normalized names; of the second, all whose names begin so.
_PACKAGES = (
    "axlearn",
    "flax",
    "jax",
    "jaxlib",
    "keras",
    "libtpu",
    "libtpu-nightly",
    "ml-dtypes",
    "mxnet",
    "numpy",
    "optax",
    "orbax-checkpoint",
    "scipy",
    "tensorflow",
    "tensorflow-cpu",
    "torch",
    "torch-xla",
    "torchaudio",
    "torchvision",
    "transformers",
    "triton",
)
_BEGINNINGS = ("jax-cuda", "jax-rocm", "mkl", "nvidia-", "pytorch-triton")
# Runs in any Python from 3.8 on. The working directory is not searched: its files are not the packages' metadata.
_QUESTION = """
import sys
sys.path[:] = [path for path in sys.path if path]
import json, platform, re
from importlib import metadata
exact, beginnings = json.loads(sys.argv[1])
found = {}
for each in metadata.distributions():
    try:
        name = re.sub("[-_.]+", "-", each.metadata["Name"]).lower()
        if name in exact or name.startswith(tuple(beginnings)):
            found.setdefault(name, each.version)
    except Exception:
        continue
print(json.dumps([platform.python_implementation() + " " + platform.python_version(), found]))
"""
_ANSWER_MAX_BYTES = 64 * 1024
_LIBRARIES_MAX = 128
_VERSION_MAX_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """`problem`: why nothing is known, for people."""

    python: str = ""
    libraries: dict[str, str] = field(default_factory=dict)
    problem: str = ""


def interpreter_of(command: str, path: str, folder: Path) -> str:
    """The first Python that a command line names, or else `python3`; empty if there is none.

    Args:
        path: The command's PATH.
        folder: Its working directory.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    named = [word for word in words if _PYTHON.fullmatch(word.rpartition("/")[2])]
    for word in [*named[:1], "python3", "python"]:
        found = shutil.which(folder / word if "/" in word else word, path=path)
        if found is not None:
            return str(found)
    return ""


def ask(
    interpreter: str,
    variables: Mapping[str, str],
    child_processes: ChildProcesses,
    *,
    give_up: Callable[[], bool],
    seconds: float,
    user: JobUser | None = None,
) -> Packages:
    """Ask an interpreter, as the command's user. `give_up` is asked time and again: the host may have no time left."""
    if give_up():
        return Packages(problem="the host had no time left to ask which libraries the command's Python has")
    if not interpreter:
        return Packages(problem="the command's PATH has no python3; its libraries are not known")
    question = json.dumps([_PACKAGES, _BEGINNINGS])
    try:
        process = child_processes.start(
            [interpreter, "-c", _QUESTION, question], variables=variables, folder=Path("/"), user=user
        )
    except (OSError, ValueError) as error:
        return Packages(problem=f"{interpreter} could not be started ({error}); its libraries are not known")
    try:
        answer = _answer(process, give_up, time.monotonic() + seconds)
    finally:
        _kill(process)
        child_processes.wait(process)
        if user is not None:
            user.kill_all()
    return _read(answer, interpreter)


def _answer(process: subprocess.Popen[bytes], give_up: Callable[[], bool], deadline: float) -> bytes | None:
    assert process.stdout is not None
    assert process.stderr is not None
    process.stderr.close()
    descriptor = process.stdout.fileno()
    data = b""
    while time.monotonic() < deadline and len(data) <= _ANSWER_MAX_BYTES and not give_up():
        if select.select([descriptor], [], [], 0.1)[0]:
            piece = os.read(descriptor, _ANSWER_MAX_BYTES)
            if not piece:
                return data
            data += piece
    return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.stdout is not None:
        process.stdout.close()
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _read(answer: bytes | None, interpreter: str) -> Packages:
    unknown = Packages(problem=f"{interpreter} did not say which libraries it has")
    if answer is None:
        return unknown
    try:
        python, libraries = documents.loads(answer)
        versions = {str(name): str(version)[:_VERSION_MAX_CHARS] for name, version in sorted(libraries.items())}
    except (documents.DocumentError, ValueError, TypeError, AttributeError):
        return unknown
    return Packages(python=str(python)[:_VERSION_MAX_CHARS], libraries=dict([*versions.items()][:_LIBRARIES_MAX]))
