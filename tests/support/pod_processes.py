"""A pod without Kubernetes: the startup script with the environment that a manifest and the downward API give it."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import bastion
from bastion import processes
from bastion.core.bucket.protocol import AgentArguments

SCRIPT = (Path(bastion.__file__).parent / "agent" / "startup.sh").read_text("utf-8")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """What the kubelet makes of `$(VAR)` and `$$` in a command (third_party/forked/golang/expansion/expand.go)."""
    out, at = [], 0
    while at < len(text):
        here, after = text[at], text[at + 1 : at + 2]
        end = text.find(")", at) if here == "$" and after == "(" else -1
        if here == "$" and after == "$":
            out.append("$")
            at += 2
        elif end >= 0:
            name = text[at + 2 : end]
            out.append(variables.get(name, f"$({name})"))
            at = end + 1
        else:
            out.append(here)
            at += 1
    return "".join(out)


class Pod:
    """One pod of slice 0. Its volume is `folder`; nothing of this user's environment reaches it but a Python."""

    def __init__(self, folder: Path, arguments: AgentArguments | str, *, worker: int = 0, agents: Path) -> None:
        """`agents`: where agents are installed; pods of a test may share it."""
        folder.mkdir()
        self.folder = folder
        self.termination_log = folder / "termination-log"
        # As the kubelet makes it.
        self.termination_log.touch()
        self.marker = secrets.token_hex(8)
        self.serial: list[str] = []
        run = "x" if isinstance(arguments, str) else arguments.run
        text = arguments if isinstance(arguments, str) else arguments.to_bytes().decode()
        self.environment = {
            "BASTION_AGENT": text,
            "BASTION_AGENT_DIR": str(agents),
            "BASTION_EMULATED_TPU": "1",
            "BASTION_PEERS": "b-x-slice-0-0.b-x,b-x-slice-0-1.b-x",
            "BASTION_POD_IP": f"127.0.0.{worker + 1}",
            "BASTION_POD_NAME": f"b-{run}-slice-0-{worker}-abcde",
            "BASTION_POD_UID": f"uid-{secrets.token_hex(4)}",
            "BASTION_SLICE_INDEX": "0",
            "BASTION_STATE_DIR": str(folder / "state"),
            "BASTION_TERMINATION_LOG": str(self.termination_log),
            "BASTION_VM": self.marker,
            "BASTION_WORKER": str(worker),
            "HOME": str(folder / "home"),
            # Nothing may ask it.
            "GCE_METADATA_HOST": "127.0.0.1:1",
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        }

    def start(self, *, script: str = SCRIPT) -> subprocess.Popen[str]:
        """Start its container, with the script as a manifest writes it."""
        command = expand(script.replace("$", "$$"), self.environment)
        process = subprocess.Popen(
            ["/bin/bash", "-c", command],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, args=(process,), daemon=True).start()
        return process

    @property
    def message(self) -> str:
        return self.termination_log.read_text("utf-8")

    def said(self, text: str) -> bool:
        return any(text in line for line in list(self.serial))

    def end(self) -> None:
        assert processes.end_marked("BASTION_VM", self.marker, grace_seconds=0)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.serial.append(line.rstrip("\n"))
