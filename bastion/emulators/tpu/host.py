"""The description of one emulated host, `host.json`, and the layout of its folder.

The emulator writes it; the host's supervisor, and after a crash the next emulator, read it. Imports no google, grpc or
pydantic.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bastion.emulators.state_folder import write_private

# Maximum lengths of a noted problem, in general and on a full disk: tmpfs needs no space for 127 bytes, ext4 for 59.
_PROBLEM_BYTES = (400, 120, 59)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """One host of a node.

    Attributes:
        vm_id: Unique on this machine and in time; the value of the marker.
        addresses: Loopback address of each host of the node, by worker number.
        port: Of the metadata server, the same on every host.
        state_dir: The emulator's folder; without an emulator the host ends itself.
        orphan_seconds: How long it waits for a new emulator first.
        grace_seconds: Between SIGTERM and SIGKILL when the host ends.
        metadata: The node's metadata as its creator sent it.
        slices, slice_index: Of the multislice that the node is part of.
        coordinator: Its `address:port`; empty without multislice.
    """

    vm_id: str
    node_id: str
    project: str
    zone: str
    worker: int
    addresses: tuple[str, ...]
    port: int
    accelerator_type: str
    topology: str
    service_account: str
    metadata: dict[str, str]
    state_dir: str
    orphan_seconds: float
    grace_seconds: float
    slices: int = 1
    slice_index: int = 0
    coordinator: str = ""

    @property
    def address(self) -> str:
        return self.addresses[self.worker]

    @property
    def name(self) -> str:
        """The VM's name, like Cloud TPU's for a worker."""
        return f"t1v-n-{self.node_id}-w-{self.worker}"


@dataclass(frozen=True, slots=True)
class HostFolder:
    path: Path

    @property
    def spec(self) -> Path:
        return self.path / "host.json"

    @property
    def startup_script(self) -> Path:
        return self.path / "startup-script"

    @property
    def serial_log(self) -> Path:
        return self.path / "serial.log"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def preempted(self) -> Path:
        """Exists once the metadata server must report a preemption."""
        return self.path / "preempted"

    @property
    def maintenance(self) -> Path:
        """Exists once the metadata server must report maintenance; holds the event's name."""
        return self.path / "maintenance"

    @property
    def problem(self) -> str:
        """The startup script's last message while the agent is not up; otherwise empty."""
        try:
            return str((self.path / "problem").readlink())
        except OSError:
            return ""

    def note_problem(self, text: str) -> None:
        """Store the startup script's message; an empty text removes it.

        Uses a symbolic link, because the problem may be a full disk; a short link takes no block.
        """
        noted, following = self.path / "problem", self.path / "problem.new"
        with contextlib.suppress(OSError):
            if not text:
                noted.unlink()
                return
            following.unlink(missing_ok=True)
            for most in _PROBLEM_BYTES:
                with contextlib.suppress(OSError):
                    following.symlink_to(text.encode()[:most].decode("utf-8", "ignore"))
                    break
            following.replace(noted)

    @property
    def disk(self) -> Path:
        """The VM's disk: `BASTION_STATE_DIR`."""
        return self.path / "state"

    @property
    def home(self) -> Path:
        return self.path / "home"

    def prepare(self, spec: HostSpec) -> None:
        """Create the folder of a host that is about to boot."""
        for folder in (self.path, self.disk, self.home):
            folder.mkdir(mode=0o700, parents=True)
        write_private(self.startup_script, spec.metadata.get("startup-script", "").encode("utf-8"))
        write_private(self.spec, json.dumps(asdict(spec)).encode())

    def read(self) -> HostSpec:
        """Read the host's description. Raises OSError if it is missing, ValueError if malformed."""
        document = json.loads(self.spec.read_bytes())
        try:
            return HostSpec(**{**document, "addresses": tuple(document["addresses"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"{self.spec} is not a host's description: {error}") from error
