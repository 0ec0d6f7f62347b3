"""The disk usage of commands that run as users of their own, as a daemon sees it that may not read their folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.adapters import bastion_host_users
from bastion.wiring.local_home import LocalHome
from bastion.wiring.roots import parse_root
from tests.support.unix_users import as_root, claim_users

USER = claim_users()
MIB = 1024 * 1024
# Prints what the watch counts for each run.
PROGRAM = """
import sys
from pathlib import Path
from bastion.adapters import bastion_host_users
from bastion.wiring.local_disk import DiskWatch
from bastion.wiring.local_home import LocalHome
from bastion.wiring.roots import parse_root
home, root, places = sys.argv[1:]
bastion_host_users.PLACES = (places,)
for run, (size, _) in DiskWatch(LocalHome(Path(home)), parse_root(root))._held_by_run().items():
    print(run, size)
"""
# Root without the right to read everybody's files is as the daemon of the unit.
DAEMON = ("setpriv", "--bounding-set=-all,+chown,+kill,+setgid,+setuid", "--inh-caps=-all")

pytestmark = [as_root, pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed here")]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody can pass; pytest's own are closed."""
    made = Path(tempfile.mkdtemp(prefix="bastion-disk-"))
    made.chmod(0o711)
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("daemon", [(), DAEMON], ids=["root", "capabilities"])
def test_it_counts_what_is_in_closed_folders_and_in_those_for_everybody(folder: Path, daemon: tuple[str, ...]) -> None:
    root = folder / "bucket" / "t-bastion"
    node = LocalHome(folder).hosts_dir(parse_root(str(root))) / "b-aaaaaaaaaa-1"
    job, shared = node / "state" / "aaaaaaaaaa-1.0" / "job", folder / "shared"
    for made in (root, job, shared):
        made.mkdir(parents=True)
    (node / "node.json").write_text("{}")
    bastion_host_users.open_way(path for path in folder.rglob("*") if path.is_dir())
    shared.chmod(0o1777)
    os.chown(job, USER, USER)
    job.chmod(0o700)
    write = f"umask 077; mkdir {job}/a {shared}/b; head -c {3 * MIB} /dev/zero | tee {job}/a/x > {shared}/b/y"
    subprocess.run(["bash", "-c", write], user=USER, group=USER, extra_groups=[], check=True)
    (shared / "of-somebody-else").write_bytes(bytes(MIB))
    done = subprocess.run(
        [*daemon, sys.executable, "-c", PROGRAM, str(folder), str(root), str(shared)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    run, size = done.stdout.split()
    assert run == "aaaaaaaaaa-1"
    assert 6 * MIB <= int(size) < 6.2 * MIB
