"""The local bastion where its folder is not one, and a daemon that cannot say anything."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bastion.core.bucket import keys
from bastion.core.model.lease import LeaseDocument
from bastion.processes import ProcessId
from bastion.wiring import local_daemon
from bastion.wiring.daemon import build_daemon
from bastion.wiring.local import up
from bastion.wiring.local_home import LocalBastionError, LocalHome
from bastion.wiring.local_kubernetes import ClusterOptions
from bastion.wiring.roots import open_root, parse_root


def _ignore(_text: str) -> None:
    pass


@pytest.mark.parametrize("cluster", [None, ClusterOptions()])
def test_a_home_that_cannot_be_a_folder_is_refused_with_what_to_do(
    tmp_path: Path, cluster: ClusterOptions | None
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalBastionError, match="set BASTION_HOME to another"):
        up(LocalHome(tmp_path / "file" / "home"), user="ann", say=_ignore, cluster=cluster)


@pytest.mark.parametrize(
    ("process", "said"),
    [
        ("1:2", "waiting for the lease of an earlier daemon, process 1:2, which did not give it back"),
        ("", "waiting for the first look of the daemon, process "),
    ],
)
def test_a_start_that_takes_long_says_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: str, said: str
) -> None:
    monkeypatch.setattr(local_daemon, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(local_daemon, "_START_SECONDS", 0.2)
    home, told = LocalHome(tmp_path / "home"), list[str]()
    Path(home.root.bucket).mkdir(parents=True)
    if process:
        lease = LeaseDocument(owner="another", epoch=1, process=process)
        open_root(home.root.url).put(keys.LEASE, lease.to_bytes(), generation=0)
    me = ProcessId.of(os.getpid())
    assert me is not None
    with pytest.raises(LocalBastionError, match="did not start within"):
        local_daemon.await_daemon(home, me, [keys.STATUS], told.append)
    assert len(told) == 1
    assert told[0].startswith(said)


def test_a_daemon_whose_own_log_is_on_a_full_disk_lives_on(tmp_path: Path) -> None:
    def say(text: str) -> None:
        with Path("/dev/full").open("w") as full:
            full.write(text)

    root = parse_root(str(tmp_path / "bucket" / "team-bastion"))
    daemon = build_daemon(root, home=LocalHome(tmp_path / "home"), owner="me", notify=say)
    try:
        shutil.rmtree(tmp_path / "bucket")
        assert not daemon.tick().acted
    finally:
        daemon.close()
