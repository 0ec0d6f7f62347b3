"""What a training keeps, and what it tells Bastion: checkpoints, the last step, curves, the result.

One process writes, the others get what it reads. A checkpoint is one file that is renamed when it is whole, so every
stored copy of the folder has a whole one. The journal is in it: which samples each step has seen. So weights, place in
the data and journal belong together; steps after the last checkpoint are done again, and are in no journal twice.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

_KEEP = 2


class StopSignal:
    """Whether this host was told to stop."""

    def __init__(self) -> None:
        self.came = False
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True


class Checkpoints:
    """Files `step-N` in a folder; N is the number of steps that are done."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def newest(self) -> Path | None:
        return max(self._all(), default=None)

    def save(self, step: int, write: Callable[[BinaryIO], None]) -> None:
        """Replace older checkpoints by what `write` writes, and tell Bastion."""
        new = self._folder / "unfinished"
        with new.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._folder / f"step-{step:08}")
        for old in sorted(self._all())[:-_KEEP]:
            old.unlink()
        print(f"saved step {step}", flush=True)
        told = os.environ.get("BASTION_CHECKPOINT_FILE")
        if told:
            Path(told).touch()  # Bastion stores it now, and knows what stopping us would cost

    def _all(self) -> list[Path]:
        return list(self._folder.glob("step-*"))


class Journal:
    """The numbers of the samples that each step has seen."""

    def __init__(self, rows: Sequence[Sequence[int]] = ()) -> None:
        self.rows = [list(row) for row in rows]

    def add(self, numbers: Sequence[int]) -> None:
        self.rows.append(list(numbers))

    def write(self, file: Path) -> None:
        lines = (json.dumps({"step": step, "samples": row}) for step, row in enumerate(self.rows))
        _replace(file, "".join(f"{line}\n" for line in lines))


class Curves:
    """Scalars for TensorBoard, if they are wanted; needs `pip install tensorboard`."""

    def __init__(self, wanted: bool, folder: Path) -> None:
        self._writer: Any = None
        if wanted:
            from tensorboard.summary import Writer

            self._writer = Writer(os.environ.get("BASTION_TENSORBOARD_DIR", str(folder / "tensorboard")))

    def add(self, step: int, **values: float) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()


def tell_step(step: int) -> None:
    """Tell Bastion the number of the last step: it counts steps that are done again."""
    told = os.environ.get("BASTION_STEP_FILE")
    if told:
        _replace(Path(told), str(step))


def write_result(folder: Path, journal: Journal, **values: float) -> None:
    """Write journal.jsonl and result.json."""
    journal.write(folder / "journal.jsonl")
    text = json.dumps({"steps": len(journal.rows), **values})
    _replace(folder / "result.json", text)
    print(f"result {text}", flush=True)


def _replace(file: Path, text: str) -> None:
    new = file.with_name(file.name + ".new")
    new.write_text(text)
    new.replace(file)
