"""`bastion daemon agent-wheels`: what the agent needs on nodes with another Python than the daemon's.

Layer: cli. The only place that downloads packages; the daemon packs what lies there (`bastion.adapters.agent_packer`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import say
from bastion.core.errors import AgentNotPacked, Refused

# What TPU images of Ubuntu 22.04 can use: glibc 2.35 on x86_64.
_PLATFORMS = tuple(f"{kind}_x86_64" for kind in ("manylinux2014", "manylinux_2_28", "manylinux_2_31", "manylinux_2_34"))


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_list(
        "python", ["3.10"], "Versions of Python on the nodes; Cloud TPU's images have 3.10.", flag_values=values
    )


def _run(call: Invocation) -> int:
    from bastion.adapters import agent_packer
    from bastion.core.bucket.agent_archive import pythons

    wanted: list[str] = call.flags.python
    for version in wanted:
        if not re.fullmatch(r"3\.1[0-4]", version):
            raise Refused(f"--python={version}: the agent runs on Python 3.10 to 3.14; write --python=3.10,3.12")
    folder = agent_packer.further_wheels()
    pins = agent_packer.native_packages()
    try:
        with tempfile.TemporaryDirectory(prefix=".agent-wheels-", dir=folder.parent) as scratch:
            new = Path(scratch) / "wheels"
            for version in wanted:
                _download(version, pins, new)
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
            manifest = agent_packer.pack(Path(scratch)).manifest
    except OSError as error:
        raise AgentNotPacked(f"the wheels cannot be stored in {folder}: {error.strerror}") from error
    print(f"{folder}: the agent serves {pythons(manifest.minors)}")
    return 0


def _download(version: str, pins: tuple[str, ...], into: Path) -> None:
    say(f"fetching wheels for Python {version}: {' '.join(pins)}")
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", "--implementation=cp", f"--python-version={version}",
            *(f"--platform={platform}" for platform in _PLATFORMS), f"--dest={into}", *pins,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise AgentNotPacked(
            f"pip could not fetch the wheels for Python {version} (above is why); nodes that have no other Python "
            "will wait for an agent"
        )


AGENT_WHEELS = Command(
    summary="Fetches wheels for nodes whose Python is not the daemon's.",
    usage="[--python=VERSION,...]",
    details="""Nodes run an agent that the daemon packs out of its own installation. Some of its packages hold native
        code, so by itself it serves the daemon's own version of Python alone. This command fetches these packages, in
        the versions that are installed, for other versions, with pip and from the package index that pip is told to
        use; it puts them into the folder agent-wheels of the environment that this program runs in, in place of what
        is there. A daemon that is started afterwards packs them too.""",
    examples=("bastion daemon agent-wheels", "bastion daemon agent-wheels --python=3.10,3.12"),
    define=_define,
    run=_run,
)
