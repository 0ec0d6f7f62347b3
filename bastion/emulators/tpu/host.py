"""What one emulated host must know about itself: `host.json` in its folder, and the folder's layout.

Written by the emulator before the host's supervisor starts, read by the supervisor and, after a crash, by the next
emulator's sweep. Light: a supervisor imports nothing of google, grpc or pydantic.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from bastion.emulators.state_folder import write_private

# The environment variable that marks every process of one host; `bastion.processes.end_marked` finds them by it.
MARKER = "BASTION_VM"
# Marks everything of a whole local bastion; handed on, so that its end finds hosts that lost their emulator, too.
HOME_MARKER = "BASTION_LOCAL_HOME"
# What a host gets of the emulator's own environment: that marker, and where this machine's Cloud Storage answers (on a
# real VM its name server knows).
INHERITED = (HOME_MARKER, "STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL")


# Of a problem that is noted, and of one on a full disk: tmpfs takes no room for 127 bytes, ext4 for 59.
_PROBLEM_BYTES = (400, 120, 59)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """One host of a node.

    Attributes:
        vm_id: Unique on this machine and in time; the value of the marker.
        addresses: Loopback address of each host of the node, by worker number.
        port: Of the metadata server, the same on every host.
        state_dir: The emulator's folder; the host ends itself when no emulator serves it any more.
        orphan_seconds: For how long it waits for a successor first.
        grace_seconds: Between SIGTERM and SIGKILL when the host ends.
        metadata: The node's metadata as its creator sent it.
        slices, slice_index: Of the multislice that the node is a part of.
        coordinator: Its `address:port`; empty for a node that is no part of one.
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
        """As Cloud TPU names the VM of a worker."""
        return f"t1v-n-{self.node_id}-w-{self.worker}"


@dataclass(frozen=True, slots=True)
class HostFolder:
    """The files of one host."""

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
        """Exists once the host's metadata server must say that it was pre-empted."""
        return self.path / "preempted"

    @property
    def maintenance(self) -> Path:
        """Exists once the host's metadata server must tell of a maintenance; holds the event's name."""
        return self.path / "maintenance"

    @property
    def problem(self) -> str:
        """The last words of the startup script while the agent is not up; empty: it has none."""
        try:
            return str((self.path / "problem").readlink())
        except OSError:
            return ""

    def note_problem(self, text: str) -> None:
        """Keep the startup script's words, or with an empty text forget them.

        A symbolic link keeps them, because the problem may be that the disk is full; a short one takes no block.
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
        """What the VM calls its disk: `BASTION_STATE_DIR`."""
        return self.path / "state"

    @property
    def home(self) -> Path:
        return self.path / "home"

    def prepare(self, spec: HostSpec) -> None:
        """Makes the folder of a host that is about to boot."""
        for folder in (self.path, self.disk, self.home):
            folder.mkdir(mode=0o700, parents=True)
        write_private(self.startup_script, spec.metadata.get("startup-script", "").encode("utf-8"))
        write_private(self.spec, json.dumps(asdict(spec)).encode())

    def read(self) -> HostSpec:
        """The host's own description.

        Raises:
            OSError: the folder is gone or was never finished.
            ValueError: the file is not what `prepare` writes.
        """
        document = json.loads(self.spec.read_bytes())
        try:
            return HostSpec(**{**document, "addresses": tuple(document["addresses"])})
        except (TypeError, KeyError) as error:
            raise ValueError(f"{self.spec} is not a host's description: {error}") from error
