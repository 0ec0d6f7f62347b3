"""`bastion daemon agent-wheels`: download what the agent needs on hosts with another Python than the daemon's.

Nothing else downloads packages; the daemon packs this folder (`bastion.adapters.agent_packer`). pip takes only wheels
whose SHA-256 is in the lock files of the package (`bastion.adapters.lock_files`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import say
from bastion.core.errors import AgentNotPacked, Refused

# Platforms that TPU images of Ubuntu 22.04 support: glibc 2.35 on x86_64.
_PLATFORMS = tuple(f"{kind}_x86_64" for kind in ("manylinux2014", "manylinux_2_28", "manylinux_2_31", "manylinux_2_34"))


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_list(
        "python", ["3.10"], "Python versions on the hosts; Cloud TPU images have 3.10.", flag_values=values
    )


def _run(call: Invocation) -> int:
    from bastion.adapters import agent_packer
    from bastion.core.bucket.agent_archive import pythons

    wanted: list[str] = call.flags.python
    for version in wanted:
        if not re.fullmatch(r"3\.1[0-4]", version):
            raise Refused(f"--python={version} is not supported; use 3.10 to 3.14, like --python=3.10,3.12")
    folder = agent_packer.further_wheels()
    requirements = _with_hashes(agent_packer.native_packages())
    try:
        with tempfile.TemporaryDirectory(prefix=".agent-wheels-", dir=folder.parent) as scratch:
            new = Path(scratch) / "wheels"
            listed = Path(scratch) / "requirements.txt"
            listed.write_text(requirements, "utf-8")
            for version in wanted:
                _download(version, listed, new)
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
            manifest = agent_packer.pack(Path(scratch)).manifest
    except OSError as error:
        raise AgentNotPacked(f"cannot write the wheels to {folder}: {error.strerror}") from error
    print(f"{folder}: the agent supports {pythons(manifest.minors)}")
    return 0


def _with_hashes(pins: Sequence[str]) -> str:
    """Return pip's requirements for exactly these versions and the locked hashes of each."""
    from bastion.adapters import lock_files

    try:
        known = lock_files.hashes()
    except (OSError, ValueError) as error:
        raise AgentNotPacked(f"cannot read the lock files in {lock_files.FOLDER}: {error}") from error
    unknown = [pin for pin in pins if pin not in known]
    if unknown:
        raise AgentNotPacked(
            f"not in Bastion's lock files: {', '.join(unknown)}. So wheels for other Pythons cannot be verified. "
            f"Install the locked versions: pip install --require-hashes --requirement={lock_files.FOLDER / 'base.lock'}"
        )
    return "".join(f"{' '.join((pin, *(f'--hash=sha256:{hash}' for hash in known[pin])))}\n" for pin in pins)


def _download(version: str, requirements: Path, into: Path) -> None:
    say(f"downloading wheels for Python {version}")
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", "--implementation=cp", f"--python-version={version}",
            *(f"--platform={platform}" for platform in _PLATFORMS), f"--dest={into}",
            "--require-hashes", f"--requirement={requirements}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise AgentNotPacked(
            f"pip could not download the wheels for Python {version}, or they are not those of the lock files (see "
            "above); the agent cannot start on hosts with only this Python"
        )


AGENT_WHEELS = Command(
    summary="Downloads wheels for hosts whose Python version differs from the daemon's.",
    usage="[--python=VERSION,...]",
    details="""Hosts run an agent that the daemon packs from its own installation. Some packages contain native code, so
        by default the agent supports only the daemon's own Python version. This command downloads the installed
        versions of these packages for other Python versions, with pip and its configured package index, and accepts
        only wheels whose hashes are in Bastion's lock files. It replaces the folder agent-wheels of the environment
        that this program runs in. Restart the daemon to pack them.""",
    examples=("bastion daemon agent-wheels", "bastion daemon agent-wheels --python=3.10,3.12"),
    define=_define,
    run=_run,
)
