"""Faults on demand, for tests and for people who want to see what happens: files in `DIR/faults/`.

* `fail-create.<anything>`: the next creation fails through its operation. The file's text is `CODE message`; empty
  means a stock-out in the API's own words. One file, one creation.
* `preempt.<node id>`: the node is pre-empted as soon as it is ready.
* `create-delay-seconds`: how long every creation takes before its hosts boot; stays until removed.

Files, because they work from a shell (`touch`), for a separate process, and across a restart.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass
from pathlib import Path

_STOCKOUT_CODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateFailure:
    """How a creation ends: a code of google.rpc.Code and a message."""

    code: int
    message: str


def stockout(zone: str) -> CreateFailure:
    """A creation's end in a zone that has nothing left, in the API's own words."""
    return CreateFailure(
        code=_STOCKOUT_CODE,
        message=f'There is no more capacity in the zone "{zone}"; you can try in another zone where '
        "Cloud TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions)",
    )


class Faults:
    """Reads, and for tests writes, the fault files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fail_creations(self, count: int, *, code: int = 0, message: str = "") -> None:
        """Makes the next `count` creations fail; without a code, with a stock-out."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(count):
            text = f"{code} {message}" if code else ""
            (self._folder / f"fail-create.{uuid.uuid4().hex}").write_text(text, "utf-8")

    def delay_creations(self, seconds: float) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._folder / "create-delay-seconds").write_text(str(seconds), "utf-8")

    def preempt(self, node_id: str) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._folder / f"preempt.{node_id}").touch()

    def take_create_failure(self, zone: str) -> CreateFailure | None:
        """The failure of the creation at hand, used up by this call."""
        for path in sorted(self._folder.glob("fail-create*")):
            with contextlib.suppress(OSError):
                text = path.read_text("utf-8", "replace").strip()
                path.unlink()  # who removes it has it
                code, _, message = text.partition(" ")
                return CreateFailure(
                    code=int(code) if code.isdigit() else _STOCKOUT_CODE, message=message or stockout(zone).message
                )
        return None

    def create_delay_seconds(self) -> float:
        try:
            return float((self._folder / "create-delay-seconds").read_text("utf-8"))
        except (OSError, ValueError):
            return 0.0

    def preemptions(self) -> list[str]:
        """Ids of nodes to pre-empt; each stays listed until `preempted` is called."""
        return [path.name.removeprefix("preempt.") for path in self._folder.glob("preempt.*")]

    def preempted(self, node_id: str) -> None:
        (self._folder / f"preempt.{node_id}").unlink(missing_ok=True)
