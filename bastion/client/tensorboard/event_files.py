"""TensorBoard's event files: their steps, and the marks and scalars that the mirror adds.

Reading and writing is TensorBoard's own (extra `tensorboard`). TensorBoard reads the files of a folder by name, and
drops the points from the step of a SessionLog START on (tensorboard: event_accumulator.py). So a restart is one more
file, named to sort just before the first one of its attempt.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bastion.core.errors import InvalidDocument

_NAME = re.compile(r"events\.out\.tfevents\.(?P<seconds>[0-9]{10})\.(?P<rest>.+)")
# Sorts before any host's name.
MARK = "!restart"
# Clocks of hosts and daemon differ by less.
_CLOCKS_SECONDS = 30.0


def follows_restart(path: Path, starts: Sequence[float]) -> bool:
    """Whether an event file is the first one of its run in its folder, after others that wrote there.

    Args:
        starts: When the runs of the command began, in seconds since the epoch.
    """
    began = _began(path)
    if began is None:
        return False
    others = [other for file in path.parent.iterdir() if (other := _began(file)) is not None and MARK not in file.name]
    run = _run_of(began, starts)
    return any(_run_of(other, starts) < run for other in others) and not any(
        _run_of(other, starts) == run and other <= began for other in others
    )


def _run_of(began: float, starts: Sequence[float]) -> int:
    """The number of the run in which a file was begun, from 0."""
    found = 0
    for number in range(1, len(starts)):
        slack = min(_CLOCKS_SECONDS, (starts[number] - starts[number - 1]) / 2)
        if began >= starts[number] - slack:
            found = number
    return found


def _began(path: Path) -> int | None:
    found = _NAME.fullmatch(path.name)
    return int(found["seconds"]) if found else None


def first_step(data: bytes) -> int | None:
    """The step of the first event with a value; None if there is none yet. Raises InvalidDocument."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    for record in _records(data):
        try:
            event = Event.FromString(record)
        except DecodeError as error:
            raise InvalidDocument("is not an event file") from error
        if event.HasField("summary"):
            return int(event.step)
    return None


def _records(data: bytes) -> Iterator[bytes]:
    """The records of a TFRecord file: length, its checksum, data, its checksum; the last one may be cut."""
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + 12 + length
        if end + 4 > len(data):
            return
        yield data[at + 12 : end]
        at = end + 4


def mark_restart(path: Path, step: int) -> None:
    """Write the mark before an event file: what was after `step` is done again."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    found = _NAME.fullmatch(path.name)
    assert found is not None  # `follows_restart` has read its name
    mark = path.with_name(f"events.out.tfevents.{found['seconds']}.{MARK}")
    wall_time = float(found["seconds"])
    start = Event(wall_time=wall_time, step=step, session_log=SessionLog(status=SessionLog.START))
    # Twice: the first one that TensorBoard ever sees in a folder is no restart (plugin_event_accumulator.py).
    _write(mark, [Event(wall_time=wall_time, file_version="brain.Event:2"), start, start])


def write_scalars(path: Path, points: Sequence[tuple[float, int, Mapping[str, float]]]) -> None:
    """Write points (instant, step, values by tag) as a whole event file, over an older one."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    events = [Event(wall_time=points[0][0] if points else 0.0, file_version="brain.Event:2")]
    events += [
        Event(
            wall_time=instant,
            step=step,
            summary=Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]),
        )
        for instant, step, values in points
    ]
    _write(path, events)


def _write(path: Path, events: Sequence[Any]) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name.replace('tfevents', 'new')}")
    with new.open("wb") as file:
        writer = RecordWriter(file)
        for event in events:
            writer.write(event.SerializeToString())
        writer.flush()
    new.replace(path)
