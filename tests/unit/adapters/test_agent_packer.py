"""The agent file, made out of what is installed here."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import bastion
from bastion.adapters import agent_packer
from bastion.adapters.agent_packer import pack
from bastion.core.bucket.agent_archive import MANIFEST, Manifest, PackedAgent
from bastion.core.errors import AgentNotPacked


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedAgent:
    return pack(tmp_path_factory.mktemp("kept"), further=Path("/nonexistent"))


def members(packed: PackedAgent) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(packed.archive)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def wheel(packed: PackedAgent, name: str) -> zipfile.ZipFile:
    (data,) = [data for path, data in members(packed).items() if path.startswith(f"wheels/{name}-")]
    return zipfile.ZipFile(io.BytesIO(data))


def test_the_same_installation_gives_the_same_bytes(packed: PackedAgent, tmp_path: Path) -> None:
    assert pack(tmp_path, further=Path("/nonexistent")) == packed


def test_it_serves_this_python_and_holds_what_the_manifest_says(packed: PackedAgent) -> None:
    found = members(packed)
    manifest = Manifest.read(found[MANIFEST])
    assert manifest == packed.manifest
    assert sys.version_info.minor in manifest.minors
    assert {f"wheels/{wheel.file}" for wheel in manifest.wheels} | {MANIFEST} == set(found)
    assert {"bastion", "pydantic", "pydantic-core", "google-auth", "requests"} <= set(manifest.needs)
    # The storage proxy's.
    assert {"cryptography", "google-crc32c", "certifi"} <= set(manifest.needs)
    # What a node does not need would only have to be fetched by each of them.
    assert not {"grpcio", "google-cloud-tpu", "jax", "absl-py"} & set(manifest.needs)


def test_every_wheel_is_whole_and_lists_its_files(packed: PackedAgent) -> None:
    for path, data in members(packed).items():
        if path.endswith(".whl"):
            with zipfile.ZipFile(io.BytesIO(data)) as files:
                assert files.testzip() is None
                (record,) = [name for name in files.namelist() if name.endswith(".dist-info/RECORD")]
                listed = [line.rsplit(",", 2)[0] for line in files.read(record).decode().splitlines()]
                assert sorted(listed) == sorted(files.namelist())


def test_of_botocores_services_it_has_s3_and_those_that_give_credentials(packed: PackedAgent) -> None:
    (wheel,) = [wheel for wheel in packed.manifest.wheels if wheel.name == "botocore"]
    with tarfile.open(fileobj=io.BytesIO(packed.archive)) as tar:
        member = tar.extractfile(f"wheels/{wheel.file}")
        assert member is not None
        names = zipfile.ZipFile(io.BytesIO(member.read())).namelist()
    data = [name.split("/") for name in names if name.startswith("botocore/data/")]
    assert {path[2] for path in data if len(path) > 3} == {"s3", "signin", "sso", "sso-oidc", "sts"}
    assert {"endpoints.json", "partitions.json", "_retry.json"} <= {path[2] for path in data if len(path) == 3}


def test_nothing_tells_of_this_machine(packed: PackedAgent) -> None:
    with tarfile.open(fileobj=io.BytesIO(packed.archive)) as tar:
        assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in tar} == {(0, 0, 0, "", "", 0o644)}
    for path, data in members(packed).items():
        if path.endswith(".whl"):
            with zipfile.ZipFile(io.BytesIO(data)) as files:
                names = files.namelist()
            assert not [name for name in names if ".." in name or name.startswith("/")]
            assert not [name for name in names if name.endswith((".pyc", "INSTALLER", "direct_url.json", "REQUESTED"))]


def test_bastion_is_packed_from_its_sources_with_its_data(packed: PackedAgent) -> None:
    names = set(wheel(packed, "bastion").namelist())
    assert {
        "bastion/wiring/agent.py",
        "bastion/core/model/accelerators.csv",
        "bastion/agent/startup.sh",
        "bastion/agent/slice_hook/jax_plugins/bastion_local_slice.py",
        "quota/__init__.py",
        "scheduler/__init__.py",
        f"bastion-{bastion.__version__}.dist-info/METADATA",
    } <= names


def test_an_unchanged_installation_is_not_packed_again(tmp_path: Path) -> None:
    first = pack(tmp_path, needs=("tenacity",))
    (kept,) = tmp_path.iterdir()
    os.utime(kept, (1, 1))
    assert pack(tmp_path, needs=("tenacity",)) == first
    assert kept.stat().st_mtime == 1
    # Whatever else is packed takes its place.
    assert pack(tmp_path, needs=("tenacity", "idna")).sha256 != first.sha256
    assert len(list(tmp_path.iterdir())) == 1
    assert not kept.exists()


def test_a_changed_source_changes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "lib"
    for package in ("bastion", "quota", "scheduler"):
        shutil.copytree(
            Path(bastion.__file__).parent.parent / package, copy / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    monkeypatch.setattr(bastion, "__file__", str(copy / "bastion" / "__init__.py"))
    first = pack(tmp_path / "kept", needs=("tenacity",))
    with (copy / "bastion" / "wiring" / "agent.py").open("a") as source:
        source.write("# changed\n")
    second = pack(tmp_path / "kept", needs=("tenacity",))
    assert first.sha256 != second.sha256
    assert wheel(second, "bastion").read("bastion/wiring/agent.py").endswith(b"# changed\n")


def test_wheels_for_other_pythons_are_added(packed: PackedAgent, tmp_path: Path) -> None:
    further = tmp_path / "agent-wheels"
    further.mkdir()
    native = {w.name for w in packed.manifest.wheels if not any(tag.endswith("-any") for tag in w.tags)}
    assert 9 not in packed.manifest.minors
    for name in sorted(native):
        file = f"{name.replace('-', '_')}-1.0-cp39-abi3-manylinux2014_x86_64.whl"
        (further / file).write_bytes(b"wheel of " + name.encode())
    both = pack(tmp_path / "kept", further=further)
    assert not both.manifest.lacks(12)
    assert both.manifest.needs == packed.manifest.needs
    assert members(both)["wheels/cffi-1.0-cp39-abi3-manylinux2014_x86_64.whl"] == b"wheel of cffi"


def test_wheels_for_other_pythons_lie_in_the_environment_of_the_program() -> None:
    assert agent_packer.further_wheels() == Path(sys.prefix) / "agent-wheels"


def test_a_package_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentNotPacked, match="the package no-such-package is not installed"):
        pack(tmp_path, needs=("no-such-package",))


def test_a_package_in_editable_mode_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "site" / "shadow_pkg-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shadow-pkg\nVersion: 1.0\n")
    (info / "WHEEL").write_text("Tag: py3-none-any\n")
    (info / "RECORD").write_text(
        "__editable__.shadow_pkg-1.0.pth,,\nshadow_pkg-1.0.dist-info/METADATA,,\nshadow_pkg-1.0.dist-info/RECORD,,\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(AgentNotPacked, match="shadow-pkg was not installed from a wheel"):
        pack(tmp_path / "kept", needs=("shadow-pkg",))


def test_requirements_count_by_marker_and_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(name: str, *requires: str) -> None:
        info = tmp_path / "site" / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}")
        (info / "WHEEL").write_text("Tag: py3-none-any\n")
        (tmp_path / "site" / f"{name}.py").write_text("")
        (info / "RECORD").write_text(
            f"{name}.py,,\n../../../bin/{name},,\n{name}-1.0.dist-info/METADATA,,\n{name}-1.0.dist-info/RECORD,,\n"
        )

    install("top", "Middle_Pkg[fast]>=1", "absent; python_version < '3'", "unwanted; extra == 'docs'")
    install("middle_pkg", "quick (>=2) ; extra == 'fast'", "slow; extra == 'slow'", "top")
    install("quick")
    install("slow")
    install("unwanted")
    install("optional", "quick", "below")
    install("below")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    packed = pack(tmp_path / "kept", needs=("top",), extras=("optional", "not-installed"))
    assert packed.manifest.needs == ("bastion", "middle-pkg", "quick", "top")
    # What is optional goes along with what it needs, and no Python is turned away for want of it.
    assert {wheel.name for wheel in packed.manifest.wheels} == {*packed.manifest.needs, "optional", "below"}
    assert sorted(wheel(packed, "quick").namelist()) == [
        "quick-1.0.dist-info/METADATA",
        "quick-1.0.dist-info/RECORD",
        "quick.py",
    ]
