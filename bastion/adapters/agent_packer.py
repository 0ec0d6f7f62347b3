"""Pack the agent and its dependencies from the installed packages.

Nothing is downloaded: installed packages become wheels again, by their RECORD; bastion itself is packed from its
sources. Wheels in the environment's folder `agent-wheels` are added, for other Pythons.

Invariant: the same installation gives the same bytes. Members are sorted, and have no time, owner or local path.
Packing takes half a second of CPU, so the result is cached by its inputs.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import bastion
from bastion.core.bucket import wheel_tags
from bastion.core.bucket.agent_archive import MANIFEST, WHEELS, Manifest, PackedAgent, Wheel
from bastion.core.errors import AgentNotPacked

# What the agent and the storage proxy import, of bastion's dependencies.
NEEDS = ("certifi", "cryptography", "google-cloud-storage", "google-crc32c", "pydantic", "tenacity", "tomli")
# Optional; packed if installed. Without the first the proxy's keys come from files only, without the second there is no
# S3; both together are a fifth of the agent.
EXTRAS = ("google-cloud-kms", "boto3")
# botocore describes every service of Amazon, in 20 MB; S3 needs itself and those that give credentials.
_BOTOCORE_DATA = ("botocore", "data")
_BOTOCORE_SERVICES = frozenset({"s3", "signin", "sso", "sso-oidc", "sts"})
_OURS = ("bastion", "quota", "scheduler")
# An installer's files about this machine.
_INSTALLERS_NOTES = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_build.json", "uv_cache.json"}
_EPOCH = (1980, 1, 1, 0, 0, 0)
# A third of the size for a third of a second; better compression saves another tenth for three times that.
_COMPRESSION = 1
_REQUIREMENT = re.compile(r"\s*(?P<name>[A-Za-z0-9._-]+)\s*(?:\[(?P<extras>[^\]]*)\])?[^;]*(?:;(?P<marker>.*))?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def further_wheels() -> Path:
    """The folder with wheels for other Pythons: `agent-wheels` in this environment."""
    return Path(sys.prefix) / "agent-wheels"


def pack(
    kept: Path, *, further: Path | None = None, needs: Sequence[str] = NEEDS, extras: Sequence[str] = EXTRAS
) -> PackedAgent:
    """Pack the agent of this installation.

    Args:
        kept: Cache folder; created if missing.
        further: Folder with more wheels, by default `further_wheels()`. It need not exist.
        needs: Packages to pack with their dependencies.
        extras: Optional packages, packed if installed; a Python without wheels of them is still supported.

    Raises AgentNotPacked if a package is missing, or installed in a way that cannot be packed.
    """
    try:
        needed: list[_Installed | _Sources] = [*_installed(needs), _Sources()]
        names = {source.name for source in needed}
        sources = [*needed, *(extra for extra in _installed(_present(extras)) if extra.name not in names)]
        wheels = sorted((further or further_wheels()).glob("*.whl"))
        made_of = hashlib.sha256()
        for line in (*(line for source in sources for line in source.fingerprint()), *map(_stamp, wheels)):
            made_of.update(line.encode() + b"\n")
        path = kept / f"agent-{made_of.hexdigest()[:32]}.tar"
        if not path.exists():
            archive = _archive(sources, wheels, needs=sorted(names))
            _keep(path, archive)
        else:
            archive = path.read_bytes()
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            member = tar.extractfile(MANIFEST)
            assert member is not None  # written by `_archive`
            manifest = Manifest.read(member.read())
    except (OSError, tarfile.TarError, KeyError, ValueError) as error:
        raise AgentNotPacked(f"cannot pack the agent for the nodes: {error}") from error
    return PackedAgent(sha256=hashlib.sha256(archive).hexdigest(), archive=archive, manifest=manifest)


def native_packages(needs: Sequence[str] = NEEDS, extras: Sequence[str] = EXTRAS) -> tuple[str, ...]:
    """Return the native packages that other Pythons need wheels of, as `cffi==2.1.1`; raises like `pack`."""
    try:
        packages = _installed((*needs, *_present(extras)))
        return tuple(
            f"{package.name}=={package.version}"
            for package in packages
            if not any(tag.endswith("-none-any") for tag in package.tags())
        )
    except (OSError, ValueError) as error:
        raise AgentNotPacked(f"cannot pack the agent for the nodes: {error}") from error


def _keep(path: Path, archive: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as new:
        new.write(archive)
    Path(new.name).replace(path)
    for other in path.parent.glob("agent-*.tar"):
        if other != path:
            other.unlink(missing_ok=True)


def _archive(sources: Sequence[_Installed | _Sources], further: Sequence[Path], *, needs: Sequence[str]) -> bytes:
    files: dict[str, bytes] = {}
    wheels = []
    for source in sources:
        wheel = Wheel(name=source.name, version=source.version, file=source.file_name(), tags=source.tags())
        files[wheel.file] = _wheel(source)
        wheels.append(wheel)
    for path in further:
        name, version = path.name.split("-")[:2]
        if path.name not in files:
            tags = tuple(wheel_tags.of_file_name(path.name))
            wheels.append(Wheel(name=_normal(name), version=version, file=path.name, tags=tags))
            files[path.name] = path.read_bytes()
    # Of two wheels of a package for one Python, our own installation's counts: it is first.
    manifest = Manifest(version=bastion.__version__, needs=tuple(needs), wheels=tuple(wheels))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, MANIFEST, manifest.to_bytes())
        for name in sorted(files):
            _add(tar, f"{WHEELS}/{name}", files[name])
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    info.mode = 0o644
    tar.addfile(info, io.BytesIO(data))


def _wheel(source: _Installed | _Sources) -> bytes:
    buffer = io.BytesIO()
    record = []
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION) as archive:
        for name, data in sorted(source.content().items()):
            archive.writestr(_member(name), data, zipfile.ZIP_DEFLATED, _COMPRESSION)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
        name = f"{source.info_folder}/RECORD"
        record.append(f"{name},,\n")
        archive.writestr(_member(name), "".join(record), zipfile.ZIP_DEFLATED, _COMPRESSION)
    return buffer.getvalue()


def _member(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.external_attr = 0o644 << 16
    info.create_system = 3  # Unix, whatever this machine is
    return info


class _Installed:
    """A package as an installer left it."""

    def __init__(self, distribution: importlib.metadata.Distribution) -> None:
        self._distribution = distribution
        self.name = _normal(distribution.metadata["Name"])
        self.version = distribution.version
        self.files = [file for file in distribution.files or () if _belongs(file)]
        if not any(file.suffix in (".py", ".so") for file in self.files):
            raise ValueError(
                f"the package {self.name} was not installed from a wheel (its RECORD names no code); "
                "install it with pip, and not in editable mode"
            )
        (self.info_folder,) = {f.parts[0] for f in self.files if f.parts[0].endswith(".dist-info")}

    def fingerprint(self) -> Iterator[str]:
        # Installed files are not edited in place: their list identifies them.
        yield f"{self.name} {self.version} {_stamp(self._located(f'{self.info_folder}/RECORD'))}"

    def tags(self) -> tuple[str, ...]:
        text = self._distribution.read_text("WHEEL") or ""
        found = re.findall(r"^Tag:\s*(\S+)\s*$", text, re.MULTILINE)
        return tuple(sorted({tag for line in found for tag in wheel_tags.expand(line)}))

    def file_name(self) -> str:
        return f"{self.info_folder.removesuffix('.dist-info')}-{self.tags()[0]}.whl"

    def content(self) -> Mapping[str, bytes]:
        return {file.as_posix(): self._located(file.as_posix()).read_bytes() for file in self.files}

    def _located(self, name: str) -> Path:
        return Path(str(self._distribution.locate_file(name)))


class _Sources:
    """Bastion itself, often run from a checkout without a RECORD."""

    name = "bastion"
    version = bastion.__version__
    info_folder = f"bastion-{version}.dist-info"

    def __init__(self) -> None:
        base = Path(bastion.__file__).parent.parent
        self._files = {
            path.relative_to(base).as_posix(): path
            for package in _OURS
            for path in sorted((base / package).rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
        }

    def fingerprint(self) -> Iterator[str]:
        for name, path in self._files.items():
            yield f"{name} {_stamp(path)}"

    def tags(self) -> tuple[str, ...]:
        return ("py3-none-any",)

    def file_name(self) -> str:
        return f"bastion-{self.version}-py3-none-any.whl"

    def content(self) -> Mapping[str, bytes]:
        files = {name: path.read_bytes() for name, path in self._files.items()}
        metadata = f"Metadata-Version: 2.1\nName: bastion\nVersion: {self.version}\n"
        files[f"{self.info_folder}/METADATA"] = metadata.encode()
        files[f"{self.info_folder}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        return files


def _installed(needs: Sequence[str]) -> list[_Installed]:
    """Return the packages with their dependencies, by name. A dependency with a marker counts if it is installed."""
    found: dict[str, set[str]] = {}
    distributions: dict[str, importlib.metadata.Distribution] = {}
    waiting = [(need, "") for need in needs]
    while waiting:
        requirement, by = waiting.pop()
        match = _REQUIREMENT.match(requirement)
        if match is None:
            raise ValueError(f"{by} needs {requirement!r}, which names no package")
        name = _normal(match["name"])
        extras = {extra.strip() for extra in (match["extras"] or "").split(",") if extra.strip()}
        if name in found and extras <= found[name]:
            continue
        try:
            distributions[name] = distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if match["marker"]:
                continue
            raise ValueError(f"the package {name} is not installed{f', and {by} needs it' if by else ''}") from None
        extras = found[name] = found.get(name, set()) | extras
        for further in distribution.requires or ():
            extra = _EXTRA.search(further)
            if extra is None or extra[1] in extras:
                waiting.append((further, name))
    return [_Installed(distributions[name]) for name in sorted(distributions)]


def _present(names: Sequence[str]) -> list[str]:
    return [name for name in names if next(iter(importlib.metadata.distributions(name=name)), None) is not None]


def _belongs(file: importlib.metadata.PackagePath) -> bool:
    """Whether a file in a RECORD came from the wheel, and is below the packages (scripts are not)."""
    return (
        file.parts[0] not in ("..", "/")
        and not Path(file).is_absolute()
        and "__pycache__" not in file.parts
        and not (file.parts[:2] == _BOTOCORE_DATA and len(file.parts) > 3 and file.parts[2] not in _BOTOCORE_SERVICES)
        and not (file.parent.suffix == ".dist-info" and file.name in _INSTALLERS_NOTES)
    )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{path.name} {status.st_size} {status.st_mtime_ns}"
