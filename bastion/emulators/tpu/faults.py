"""Faults on demand, for tests and demonstrations: files in `DIR/faults/`.

* `fail-create.<anything>`: the next creation's operation fails with the file's text `CODE message`; empty means a
  stockout.
* `hang-create.<anything>`: the next creation never ends.
* `preempt.<node id>`: the node is preempted as soon as it is ready.
* `maintenance.<node id>`: host maintenance ends the node; with the text `recreate` it returns on new hosts.
* `crash.<node id>`, `silent-crash.<node id>`: the node's host 0, or the one numbered in the text, dies; the node is
  TERMINATED, or stays READY.
* `fail-call.<method>.<anything>`: the next call of that method (`CreateNode`) has no effect and fails with the text's
  `CODE message`; empty means 14, UNAVAILABLE.
* `lose-reply.<method>.<anything>`: the next call of that method takes effect and fails with UNAVAILABLE.
* `create-delay-seconds`: extra time of every creation before its hosts boot; stays until removed.
* `capacity`: lines `ZONE/TYPE=NUMBER`, which replace the initial limits; stays until removed.

Files work from a shell (`touch`), for a separate process, and across a restart.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_STOCKOUT_CODE = 8
_NODE_FAULTS = ("preempt", "maintenance", "crash", "silent-crash")


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateFailure:
    """How a creation fails: a google.rpc.Code and a message."""

    code: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFault:
    """A fault of a node when it is READY; `fault_type` is one of `fault_plan.FAULT_TYPES`."""

    fault_type: str
    node_id: str
    worker: int = 0
    recreate: bool = False


def stockout(zone: str) -> CreateFailure:
    """The API's error for a creation in a zone without capacity."""
    return CreateFailure(
        code=_STOCKOUT_CODE,
        message=f'There is no more capacity in the zone "{zone}"; you can try in another zone where '
        "Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions)",
    )


class Faults:
    """Reads the fault files, and writes them for tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    # ---- requests for faults

    def fail_creations(self, count: int, *, code: int = 0, message: str = "") -> None:
        """Make the next `count` creations fail; by default with a stockout."""
        self._ask("fail-create", count, f"{code} {message}" if code else "")

    def hang_creations(self, count: int) -> None:
        """Make the next `count` creations hang; they can be deleted."""
        self._ask("hang-create", count)

    def fail_calls(self, method: str, count: int = 1, *, code: int = 14, message: str = "") -> None:
        """Make the next `count` calls of a method fail with a google.rpc.Code, without effect."""
        self._ask(f"fail-call.{method}", count, f"{code} {message}")

    def lose_replies(self, method: str, count: int = 1) -> None:
        """Make the next `count` calls of a method take effect without a reply."""
        self._ask(f"lose-reply.{method}", count)

    def delay_creations(self, seconds: float) -> None:
        self._write("create-delay-seconds", str(seconds))

    def set_capacity(self, limits: Iterable[str]) -> None:
        """Set limits `ZONE/TYPE=NUMBER`; the others stay as at the start."""
        self._write("capacity", "\n".join(limits))

    def preempt(self, node_id: str) -> None:
        self._write(f"preempt.{node_id}", "")

    def maintain(self, node_id: str, *, recreate: bool = False) -> None:
        self._write(f"maintenance.{node_id}", "recreate" if recreate else "")

    def crash(self, node_id: str, worker: int = 0, *, silent: bool = False) -> None:
        self._write(f"{'silent-crash' if silent else 'crash'}.{node_id}", str(worker))

    # ---- what the emulator reads

    def take(self, fault_type: str) -> str | None:
        """Consume one file of that fault type and return its text; None: no such file."""
        for path in sorted([*self._folder.glob(fault_type), *self._folder.glob(f"{fault_type}.*")]):
            with contextlib.suppress(OSError):
                text = path.read_text("utf-8", "replace").strip()
                path.unlink()  # The reader that removes it has it.
                return text
        return None

    def take_create_failure(self, zone: str) -> CreateFailure | None:
        """Consume the failure of the current creation."""
        text = self.take("fail-create")
        if text is None:
            return None
        code, _, message = text.partition(" ")
        return CreateFailure(
            code=int(code) if code.isdigit() else _STOCKOUT_CODE, message=message or stockout(zone).message
        )

    def create_delay_seconds(self) -> float:
        try:
            return float((self._folder / "create-delay-seconds").read_text("utf-8"))
        except (OSError, ValueError):
            return 0.0

    def capacity(self) -> list[str]:
        try:
            return (self._folder / "capacity").read_text("utf-8", "replace").split()
        except OSError:
            return []

    def node_faults(self) -> list[NodeFault]:
        """Pending faults of nodes; each stays until `happened` is called."""
        found = []
        for fault_type in _NODE_FAULTS:
            for path in self._folder.glob(f"{fault_type}.*"):
                text = ""
                with contextlib.suppress(OSError):
                    text = path.read_text("utf-8", "replace").strip()
                worker = int(text) if text.isdigit() else 0
                node_id = path.name.removeprefix(f"{fault_type}.")
                found.append(
                    NodeFault(fault_type=fault_type, node_id=node_id, worker=worker, recreate=text == "recreate")
                )
        return found

    def happened(self, fault: NodeFault) -> None:
        (self._folder / f"{fault.fault_type}.{fault.node_id}").unlink(missing_ok=True)

    def _ask(self, fault_type: str, count: int, text: str = "") -> None:
        for _ in range(count):
            self._write(f"{fault_type}.{uuid.uuid4().hex}", text)

    def _write(self, name: str, text: str) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._folder / f".{uuid.uuid4().hex}"
        draft.write_text(text, "utf-8")
        draft.replace(self._folder / name)  # Readers never see a part of it.
