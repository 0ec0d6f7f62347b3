"""Install the agent: turn a verified agent file into a virtual environment.

Runs before the agent, in an interpreter of the node whose path has only bastion's own wheel. Import only the standard
library here, and modules that do the same (ADR 38).

Invariants:
* The environment is complete or absent. It is moved into place after a first import of the agent, which also compiles
  it.
* No network, pip, compiler, home folder or package of this interpreter is used.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from bastion.core.bucket.agent_archive import MANIFEST, WHEELS, Manifest, Wheel, pythons
from bastion.core.bucket.wheel_tags import Platform

# Emulated nodes share a machine: remove agents of earlier versions, and what a crash left.
_UNUSED_SECONDS = 14 * 24 * 3600.0
_UNFINISHED_SECONDS = 24 * 3600.0
_UNFINISHED = ".new-"


def main(arguments: Sequence[str]) -> int:
    """Install the agent; return 0 if installed, 1 if this Python is unsupported, 5 if the disk is full.

    Args:
        arguments: The agent file, its digest, the folder, and names of modules that must be importable.
    """
    archive, sha256, folder, *modules = arguments
    here = _platform()
    with tarfile.open(archive) as tar:
        manifest = Manifest.read(_member(tar, MANIFEST))
        minor = sys.version_info.minor
        lacking = manifest.lacks(minor, here)
        if lacking or sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
            libc = f", glibc {'.'.join(map(str, here.glibc))}" if here.glibc else ""
            _say(
                f"{sys.executable} (Python 3.{minor}, {here.machine}{libc}) cannot run the agent, which supports "
                f"{pythons(manifest.minors)}; missing wheels: {', '.join(lacking) or 'this kind of Python'}"
            )
            return 1
        work = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=folder))
        try:
            _install(tar, manifest.choose(minor, here), work, modules)
            _move(work, Path(folder) / sha256)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            disk = os.statvfs(folder)
            free, total = (blocks * disk.f_frsize >> 20 for blocks in (disk.f_bavail, disk.f_blocks))
            _say(f"no space left on device: {free} MiB of {total} MiB is free while installing the agent in {folder}")
            return 5
        finally:
            shutil.rmtree(work, ignore_errors=True)
    _tidy(Path(folder), keep=sha256)
    return 0


def _install(tar: tarfile.TarFile, wheels: Sequence[Wheel], work: Path, modules: Sequence[str]) -> None:
    # A virtual environment (PEP 405) by hand: not every system's Python has the venv module. If the interpreter belongs
    # to a virtual environment itself, use its base.
    base = Path(sys.executable).resolve()
    packages = work / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (work / "bin").mkdir()
    (work / "bin" / "python").symlink_to(base)
    (work / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n", "utf-8")
    for wheel in wheels:
        member = tar.extractfile(f"{WHEELS}/{wheel.file}")
        assert member is not None  # the manifest lists the files
        with zipfile.ZipFile(member) as files:
            _unpack(files, packages)
    # An environment that cannot import the agent must never count as complete.
    program = f"import {', '.join(('bastion.wiring.agent', *modules))}"
    subprocess.run([str(work / "bin" / "python"), "-I", "-c", program], check=True, stdin=subprocess.DEVNULL)


def _unpack(wheel: zipfile.ZipFile, packages: Path) -> None:
    for info in wheel.infolist():
        path = PurePosixPath(info.filename)
        if path.parts[0].endswith(".data"):
            if len(path.parts) < 3 or path.parts[1] not in ("purelib", "platlib"):
                continue  # scripts, headers, data
            info.filename = str(PurePosixPath(*path.parts[2:])) + ("/" if info.is_dir() else "")
        wheel.extract(info, packages)


def _move(work: Path, target: Path) -> None:
    if target.exists() and not os.access(target / "bin" / "python", os.X_OK):
        shutil.rmtree(target)  # the system's Python that it links to was removed
    work.chmod(0o755)
    try:
        work.rename(target)
    except OSError:
        if not target.exists():
            raise  # otherwise another installer finished first, with the same content


def _tidy(folder: Path, *, keep: str) -> None:
    now = time.time()
    for path in folder.iterdir():
        limit = _UNFINISHED_SECONDS if path.name.startswith(_UNFINISHED) else _UNUSED_SECONDS
        if path.name != keep and path.is_dir() and now - path.stat().st_mtime > limit:
            shutil.rmtree(path, ignore_errors=True)


def _platform() -> Platform:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        major, digit, *_ = version.split(".")
        glibc = (int(major), int(digit)) if name == "glibc" else None
    except (AttributeError, OSError, ValueError):  # no such name: another C library
        glibc = None
    return Platform(system=sys.platform, machine=platform.machine(), glibc=glibc)


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.extractfile(name)
    assert member is not None  # every agent file has it
    return member.read()


def _say(text: str) -> None:
    sys.stderr.write(f"bastion: {text}\n")
