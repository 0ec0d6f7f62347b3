"""What hosts read: code archives, what a command leaves, and what the platform says of them."""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import os
import shutil
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from bastion.adapters.secrets.files import read_file
from bastion.agent import bootstrap, metadata_server, pod, vm_notices
from bastion.agent.code import archive, job_needs
from bastion.agent.code.fetch import CodeProblem
from bastion.agent.code.setup import setup_of
from bastion.agent.command.step_file import StepFile
from bastion.agent.identity import parse_peers, parse_slice_index, parse_slices_address
from bastion.agent.logs.lines import LogRecord
from bastion.agent.results import files as results_files
from bastion.agent.results.mllog_tap import MllogTap
from bastion.client.code import bundle
from bastion.core import limits
from bastion.core.bucket.protocol import AgentArguments, Order, OrderAction
from bastion.core.disk_limit import DiskNotice
from bastion.core.errors import BastionError, InvalidDocument, SecretUnreadable
from tests.fuzz.mangling import Form
from tests.fuzz.target import Target

# So that a bomb is refused before it takes seconds.
_UNPACKED_MAX_BYTES = 8 * 1024 * 1024


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class _Place:
    """A folder that is empty for every input."""

    def __init__(self) -> None:
        self._top: Path | None = None

    def __enter__(self) -> Path:
        self._top = self._top or Path(tempfile.mkdtemp(prefix="fuzz-"))
        self.folder = self._top / "a"
        self.folder.mkdir()
        return self.folder

    def __exit__(self, *_: object) -> None:
        assert self._top is not None
        assert _names(self._top) == ["a"], "something was written beside the folder"
        shutil.rmtree(self.folder)


_PLACE = _Place()
_OUTSIDE = Path("/tmp/outside-of-fuzz")


def _code(data: bytes) -> None:
    with _PLACE as place, mock.patch.object(limits, "BUNDLE_UNPACKED_MAX_BYTES", _UNPACKED_MAX_BYTES):
        into = place / "code"
        archive.unpack(data, into)
        for path in into.rglob("*"):
            end = os.path.realpath(path)
            assert end.startswith(f"{os.path.realpath(into)}/") or end == os.path.realpath(into), (
                f"{path} leads to {end}"
            )
            assert path.is_symlink() or path.is_dir() or path.is_file(), f"{path} is a device or a pipe"
            assert not path.lstat().st_mode & 0o7000, f"{path} has special permissions"
        assert _names(place) == ["code"]
        assert not _OUTSIDE.exists()


# The digest of the archive is checked before, so what a damaged one raises is not told apart; it must leave nothing.
_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    NotImplementedError,
    RuntimeError,
    RecursionError,
    OverflowError,
    MemoryError,
    zlib.error,
    struct.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)


def _agent_file(data: bytes) -> None:
    """The archive of the agent, whose digest the startup script has checked: damaged, it ends the start of the host."""
    with _PLACE as place:
        (place / "agent.tar").write_bytes(data)
        (place / "agents").mkdir()
        with mock.patch.object(bootstrap.subprocess, "run"), contextlib.suppress(*_DAMAGED):
            bootstrap.main([str(place / "agent.tar"), "0" * 64, str(place / "agents")])
        assert _names(place) == ["agent.tar", "agents"]
        assert set(_names(place / "agents")) <= {"0" * 64}, "an unfinished environment was left"


def _results(data: bytes) -> None:
    with _PLACE as place:
        (place / "results").write_bytes(data)
        lines = results_files.read(place / "results", "the results file", results_files.Lines())
        assert len(lines.kept) <= limits.RESULTS_MAX_LINES
        json.dumps(lines.kept).encode()
        tap = MllogTap(place / "mllog")
        at = len(data) // 2
        for piece in (data[:at], data[at:]):
            tap.look(LogRecord(at=1.7e9, stream="stdout", data=piece))
        tap.close()


def _step(data: bytes) -> None:
    with _PLACE as place:
        (place / "step").write_bytes(data)
        step = StepFile(place / "step")
        step.look()
        assert step.highest is None or step.highest >= 0


def _secret_file(data: bytes) -> None:
    with _PLACE as place:
        (place / "secret").write_bytes(data)
        value = read_file(str(place / "secret"), "the file", missing="", closed="")
        assert value and "\0" not in value and len(os.fsencode(value)) <= limits.SECRET_MAX_BYTES


def _project(data: bytes) -> None:
    with _PLACE as place:
        (place / "pyproject.toml").write_bytes(data)
        order = Order(run="a-1", action=OrderAction.RUN, command="x", code="gs://b/code.tar")
        setup = setup_of(order, place, place / "venv")
        if setup is not None:
            assert "\0" not in setup.line
        for need in job_needs.needs_in(data.decode("utf-8", "replace"))[:5]:
            job_needs.is_installed(need)


class _Metadata(metadata_server.MetadataServer):
    """A metadata server that has these attributes."""

    def __init__(self, attributes: dict[str, str]) -> None:
        super().__init__("nowhere")
        self._attributes = attributes

    def attribute(self, name: str) -> str:
        if name not in self._attributes:
            raise InvalidDocument(f"no {name}")
        return self._attributes[name]


def _texts(data: bytes) -> dict[str, str]:
    """Variables or attributes from a JSON object; what is not UTF-8 becomes U+FFFD, as in the server's answers."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidDocument("no JSON") from error
    if not isinstance(found, dict):
        raise InvalidDocument("no object")
    return {
        str(name): (text if isinstance(text, str) else json.dumps(text)).encode("utf-8", "replace").decode()
        for name, text in found.items()
    }


def _metadata(data: bytes) -> None:
    found = _texts(data)
    metadata_server.read_identity(_Metadata(found))


def _vm_texts(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    vm_notices.preempted(text)
    vm_notices.maintenance(text)
    parse_slices_address(text)
    for parse in (parse_slice_index, parse_peers, DiskNotice.parse):
        try:
            str(parse(text))
        except InvalidDocument:  # noqa: PERF203 - each is tried
            continue


def _pod(data: bytes) -> None:
    pod.read_identity(_texts(data))


# -- seeds ----------------------------------------------------------------------------------------------------------


def _bundles() -> Sequence[bytes]:
    """Bundles as `bastion launch` writes them, and archives of other programs."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        (top / "src").mkdir()
        (top / "src" / "train.py").write_text("print()\n" * 100)
        (top / "run.sh").write_text("exec true\n")
        (top / "run.sh").chmod(0o755)
        (top / "link").symlink_to("src/train.py")
        packed = bundle.pack(top).data
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.GNU_FORMAT) as tar:
            tar.add(top, ".")
            long = tarfile.TarInfo("d/" * 60 + "long")
            tar.addfile(long)
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name in _names(top):
                tar.add(top / name, name)
    return [packed, buffer.getvalue(), plain.getvalue()]


def _agent_files() -> Sequence[bytes]:
    from bastion.core.bucket import agent_archive

    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("pkg/__init__.py", "x = 1\n")
        made.writestr("pkg-1.data/purelib/more.py", "")
    packed = agent_archive.Wheel(name="pkg", version="1", file="pkg-1-py3-none-any.whl", tags=("py3-none-any",))
    manifest = agent_archive.Manifest(version="1", needs=("pkg",), wheels=(packed,)).to_bytes()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in (
            (agent_archive.MANIFEST, manifest),
            (f"{agent_archive.WHEELS}/{packed.file}", wheel.getvalue()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return [buffer.getvalue()]


def _result_lines() -> Sequence[bytes]:
    return [
        b'{"metric": "seconds", "value": 1.5, "step": 10, "unit": "s"}\n{"metric": "loss", "value": 2}\n'
        b'0: :::MLLOG {"namespace": "", "time_ms": 1, "key": "run_start", "value": null, "metadata": {"step": 3}}\n'
    ]


def _attributes() -> Sequence[bytes]:
    arguments = AgentArguments(
        root="gs://b/x-bastion",
        bastion="x-bastion",
        job="j",
        run="aaaaaaaaaa-1",
        run_key="0" * 64,
        accelerator_type="v4-16",
        hosts_per_slice=2,
        num_slices=2,
    )
    return [
        json.dumps(
            {
                "bastion-agent": arguments.to_bytes().decode(),
                "tpu-env": "NODE_ID: 'b-aaaaaaaaaa-1-1'\nMEGASCALE_SLICE_ID: '1'\n"
                "MEGASCALE_COORDINATOR_ADDRESS: '10.0.0.1'\n",
                "agent-worker-number": "1",
                "worker-network-endpoints": "unknown:0:10.0.0.1,unknown:1:10.0.0.2",
            }
        ).encode()
    ]


def _variables() -> Sequence[bytes]:
    arguments = AgentArguments(
        root="gs://b/x-bastion",
        bastion="x-bastion",
        job="j",
        run="aaaaaaaaaa-1",
        run_key="0" * 64,
        accelerator_type="v4-16",
        hosts_per_slice=2,
        num_slices=2,
    )
    return [
        json.dumps(
            {
                pod.ARGUMENTS: arguments.to_bytes().decode(),
                pod.POD_UID: "u",
                pod.POD_IP: "10.0.0.2",
                pod.WORKER: "1",
                pod.POD_NAME: "b-aaaaaaaaaa-1-slice-1-1-abcde",
                pod.SLICE_INDEX: "1",
                pod.PEERS: "a.b,c.d",
                "TPU_WORKER_HOSTNAMES": "a,b",
            }
        ).encode()
    ]


_PROJECT = (
    b'[project]\nname = "x"\nversion = "1"\ndependencies = ["numpy>=1.26; python_version < \'3.13\'", "jax"]\n'
    b'dynamic = []\n[project.scripts]\nrun = "x:main"\n'
)
_VM = (
    b"NODE_ID: 'b-aaaaaaaaaa-1-1'\nMEGASCALE_SLICE_ID: '1'\n",
    b"unknown:0:10.0.0.1,unknown:1:10.0.0.2",
    b"1:2:3:4",
    b"TRUE",
    b"TERMINATE_ON_HOST_MAINTENANCE",
)
TARGETS = (
    Target(name="code-archive", parse=_code, errors=(archive.BadArchive,), seeds=_bundles, form=Form.TAR),
    Target(name="agent-archive", parse=_agent_file, errors=(), seeds=_agent_files, form=Form.TAR),
    Target(name="results-file", parse=_results, errors=(), seeds=_result_lines, form=Form.LINES),
    Target(name="step-file", parse=_step, errors=(), seeds=lambda: [b"17\n"], form=Form.BYTES),
    Target(
        name="secret-file",
        parse=_secret_file,
        errors=(SecretUnreadable,),
        seeds=lambda: [b"value\r\n"],
        form=Form.BYTES,
    ),
    Target(name="pyproject", parse=_project, errors=(CodeProblem,), seeds=lambda: [_PROJECT], form=Form.LINES),
    Target(name="metadata-server", parse=_metadata, errors=(BastionError,), seeds=_attributes),
    Target(name="vm-texts", parse=_vm_texts, errors=(), seeds=lambda: _VM, form=Form.BYTES),
    Target(name="pod-variables", parse=_pod, errors=(InvalidDocument,), seeds=_variables),
)
