"""What other users of the machine may do with a folder bucket, and with the folders of jobs: nothing."""

from __future__ import annotations

import os
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.adapters.bastion_host import BastionHostProvisioner
from bastion.adapters.folder.store import DirectoryStore
from bastion.agent.host_state import HostState
from bastion.core.model.gangs import GangRef, GangRequest
from bastion.emulators.gcs.server import StorageEndpoint
from bastion.wiring.roots import make_folders, open_root, parse_root


@pytest.fixture(params=[0o022, 0o002, 0o000], ids=lambda mask: f"umask-{mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Of everything below a folder, links excepted."""
    found = {}
    for above, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(above, name)
            if not path.is_symlink():
                found[str(path.relative_to(folder))] = stat.S_IMODE(path.stat().st_mode)
    return found


def open_to_others(folder: Path) -> list[str]:
    return [name for name, mode in modes(folder).items() if mode & 0o007]


def test_specs_environments_and_tokens_in_a_folder_bucket_are_closed_to_others(tmp_path: Path, umask: int) -> None:
    root = parse_root(str(tmp_path / "team" / "team-bastion"))
    store = open_root(root.url)
    make_folders(root)
    store.put("jobs/active/train", b'{"env_vars": {"KEY": "secret"}}', generation=0)
    meta = store.put("logs/train", b"1", generation=0)
    store.append("logs/train", b"2", generation=meta.generation)
    store.put("runs/aaaaaaaaaa-1/order", b"{}", generation=0)
    store.put("x/", b"a key that cannot be a file", generation=0)
    assert open_to_others(tmp_path) == []
    # The group's part is the umask's to decide, as everywhere.
    assert modes(tmp_path)["team/team-bastion/jobs/active/train"] == 0o660 & ~umask
    assert modes(tmp_path)["team/team-bastion/runs"] == 0o770 & ~umask


def test_a_team_shares_a_bucket_by_its_group(tmp_path: Path) -> None:
    folder = tmp_path / "team"
    folder.mkdir()
    folder.chmod(0o2770)
    if not folder.stat().st_mode & stat.S_ISGID:
        pytest.skip("this user may not set the group of new files")
    before = os.umask(0o002)
    try:
        DirectoryStore(folder, fsync=False).put("jobs/active/train", b"{}", generation=0)
    finally:
        os.umask(before)
    made = folder / "jobs" / "active" / "train"
    assert (made.stat().st_gid, stat.S_IMODE(made.stat().st_mode)) == (folder.stat().st_gid, 0o660)
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o2770


def test_objects_of_the_storage_endpoint_are_closed_to_others(tmp_path: Path, umask: int) -> None:
    with StorageEndpoint(tmp_path, buckets=["team"]) as endpoint:
        for query in ("uploadType=media&name=a/b", "uploadType=resumable&name=c"):
            url = f"{endpoint.url}/upload/storage/v1/b/team/o?{query}"
            with urllib.request.urlopen(url, data=b"{}", timeout=30) as answer:
                assert answer.status == 200
        assert "team/a/b" in modes(tmp_path)
        assert open_to_others(tmp_path) == []


def test_what_an_earlier_version_left_open_is_closed_without_a_new_generation(tmp_path: Path) -> None:
    root = parse_root(str(tmp_path / "team" / "team-bastion"))
    spec = Path(root.url, "jobs/active/train")
    spec.parent.mkdir(parents=True)
    spec.write_bytes(b"{}")
    for path in (Path(root.url), spec.parent, spec):
        path.chmod(0o777 if path.is_dir() else 0o644)
    store = open_root(root.url)
    before = store.head("jobs/active/train")
    make_folders(root)
    assert stat.S_IMODE(Path(root.url).stat().st_mode) == 0o770
    assert store.head("jobs/active/train") == before


def test_the_files_of_a_job_without_a_slice_are_its_owners_alone(tmp_path: Path, umask: int) -> None:
    provisioner = BastionHostProvisioner(tmp_path / "hosts", interpreter="/bin/true")
    ref = GangRef(name="b-aaaaaaaaaa-1")
    request = GangRequest(
        ref=ref, bastion="a-bastion", run="aaaaaaaaaa-1", token="secret", accelerator_type="", agent_arguments="{}"
    )
    provisioner.create(request)
    found = modes(tmp_path)
    assert {found[f"hosts/b-aaaaaaaaaa-1/{name}"] for name in ("node.json", "arguments.json")} == {0o600}
    assert {found["hosts"], found["hosts/b-aaaaaaaaaa-1"]} == {0o700}


def test_the_state_of_a_host_is_its_owners_alone(tmp_path: Path, umask: int) -> None:
    state = HostState(tmp_path / "var", run="aaaaaaaaaa-1", host=0)
    assert state.open()
    state.close()
    assert modes(tmp_path)["var/aaaaaaaaaa-1.0"] == 0o700
