"""Curves as TensorBoard itself reads them."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray


def curve(folder: Path, tag: str = "loss") -> list[tuple[int, float]]:
    """The steps and values of a scalar; empty without any."""
    reader = EventAccumulator(str(folder))
    reader.Reload()
    if tag not in reader.Tags()["tensors"]:
        return []
    return [(event.step, float(make_ndarray(event.tensor_proto).item())) for event in reader.Tensors(tag)]
