"""One emulated host: `python -m bastion.emulators.tpu.vm --folder=DIR --listen-fd=N`, started by the emulator.

The supervisor serves the host's metadata, runs the node's startup script under bash, and at the end ends all processes
of the host. It imports little, because each host runs one. Invariants:

* Every process of the host has the marker `BASTION_VM=<vm id>`; one that dropped it is found as a descendant.
* The supervisor exits only after every other marked process.
* Without an emulator it ends after `orphan_seconds`: a restart can adopt it, and a crash leaves no processes behind.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from bastion import processes
from bastion.emulators.agents import AGENT_DIR, agents_folder
from bastion.emulators.markers import MARKER, inherited
from bastion.emulators.serial_log import SerialLog
from bastion.emulators.supervision import Orphanhood, Wakeups, ended_children
from bastion.emulators.tpu.address import locate
from bastion.emulators.tpu.host import HostFolder, HostSpec
from bastion.emulators.tpu.metadata import MetadataServer

_LINE_MAX_BYTES = 4096
# The prefix of the startup script's messages, and its message before the agent.
_SAYS = b"bastion: "
_BEGINS = "starting the agent"


class ScriptMessages:
    """Finds the startup script's messages in its output; see `agent/startup.sh`.

    Calls `note` with each problem, and with "" when the agent starts.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_LINE_MAX_BYTES]
        said = [line.removeprefix(_SAYS) for line in lines if line.startswith(_SAYS)]
        texts = [each for each in said if not each.startswith(b"the agent exited")]
        if texts:
            text = "".join(c if c.isprintable() else " " for c in texts[-1].decode("utf-8", "replace"))
            self._note("" if text == _BEGINS else text)


class Supervisor:
    """Runs one host, from its boot to the end of its last process."""

    def __init__(self, spec: HostSpec, folder: HostFolder, listener: socket.socket) -> None:
        self._spec = spec
        self._folder = folder
        self._metadata = MetadataServer(spec, folder, listener)
        self._serial = SerialLog(folder.serial_log)
        self._boot_id = str(uuid.uuid4())
        self._script: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None
        self._wakeups = Wakeups()

    def run(self) -> None:
        """Boot, wait until the host must end, end it."""
        self._metadata.start()
        self._start_script()
        self._wait()
        processes.end_marked(MARKER, self._spec.vm_id, grace_seconds=self._spec.grace_seconds)
        self._reap()
        if self._pump is not None:
            self._pump.join(timeout=1.0)

    def _start_script(self) -> None:
        if not self._spec.metadata.get("startup-script"):
            self._serial.write(b"bastion: the node has no startup-script; the VM idles\n")
            return
        self._script = subprocess.Popen(
            ["/bin/bash", str(self._folder.startup_script)],
            cwd=self._folder.home,
            env=environment(self._spec, self._folder, self._boot_id),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._script.stdout is not None
        self._pump = threading.Thread(target=self._copy, args=(self._script.stdout.fileno(),), daemon=True)
        self._pump.start()

    def _copy(self, descriptor: int) -> None:
        # Ends with the last process that inherited the pipe, such as a daemon that the script started.
        messages = ScriptMessages(self._folder.note_problem)
        while data := os.read(descriptor, 65536):
            messages.feed(data)
            self._serial.write(data)

    def _wait(self) -> None:
        """Return on the order to end, or without an emulator for too long."""
        orphanhood = Orphanhood(self._has_emulator, self._spec.orphan_seconds)
        while not self._wakeups.ending:
            self._wakeups.wait(orphanhood.period)
            self._reap()
            if orphanhood.is_over():
                self._serial.write(b"bastion: no emulator serves this VM any more; ending it\n")
                return

    def _has_emulator(self) -> bool:
        return self._folder.spec.exists() and locate(Path(self._spec.state_dir)) is not None

    def _reap(self) -> None:
        for pid, code in ended_children():
            if self._script is not None and pid == self._script.pid:
                self._script.returncode = code
                self._serial.write(f"bastion: startup-script exit status {code}\n".encode())


def environment(spec: HostSpec, folder: HostFolder, boot_id: str) -> dict[str, str]:
    """A startup script's environment: only the emulator's Python first on PATH comes from this user.

    HOME is the host's folder: as on a real VM, this user's credentials and settings are not visible.
    """
    metadata = f"{spec.address}:{spec.port}"
    return {
        # Shared by all hosts, so that the agent is unpacked once.
        AGENT_DIR: str(agents_folder(Path(spec.state_dir) / "agents")),
        "BASTION_EMULATED_BOOT_ID": boot_id,
        "BASTION_EMULATED_TPU": "1",
        "BASTION_STATE_DIR": str(folder.disk),
        "GCE_METADATA_HOST": metadata,
        "GCE_METADATA_IP": metadata,
        "GCE_METADATA_ROOT": metadata,
        "HOME": str(folder.home),
        "LANG": "C.UTF-8",
        "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "SHELL": "/bin/bash",
        MARKER: spec.vm_id,
        **inherited(os.environ),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bastion.emulators.tpu.vm", description="One emulated TPU host.")
    parser.add_argument("--folder", type=Path, required=True, help="the host's folder, with host.json")
    parser.add_argument("--listen-fd", type=int, required=True, help="listening socket for the metadata server")
    arguments = parser.parse_args(argv)
    os.set_inheritable(arguments.listen_fd, False)
    listener = socket.socket(fileno=arguments.listen_fd)
    folder = HostFolder(arguments.folder)
    processes.become_subreaper()
    Supervisor(folder.read(), folder, listener).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
