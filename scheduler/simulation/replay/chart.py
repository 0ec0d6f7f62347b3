"""Shares over time as text: a row of blocks per project."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

_BLOCKS = " ▁▂▃▄▅▆▇█"


def columns(samples: Sequence[float], width: int) -> list[float]:
    """Means over `width` equal stretches; fewer if there are fewer samples."""
    count = min(width, len(samples))
    borders = [index * len(samples) // count for index in range(count + 1)] if count else [0]
    return [sum(samples[begin:end]) / (end - begin) for begin, end in itertools.pairwise(borders)]


def blocks(values: Sequence[float], full: float) -> str:
    """Each value as a block as high as its fraction of `full`; values above 0 are always visible."""
    text = ""
    for value in values:
        height = min(1.0, value / full) if full > 0 else 0.0
        text += _BLOCKS[max(round(height * (len(_BLOCKS) - 1)), 1 if value > 0 else 0)]
    return text


def share_rows(
    shares: Sequence[tuple[float, Mapping[str, int]]], entitlements: Mapping[str, int], pool: int, width: int
) -> list[tuple[str, str, str]]:
    """Rows of each project and the pool: name, mean and entitlement (pool: size) in chips, and blocks.

    A full block is twice the entitlement, or the whole pool. `shares` holds chips by project at equal distances.
    """
    rows = []
    for project, entitled in sorted(entitlements.items(), key=lambda pair: (-pair[1], pair[0])):
        held = [float(sample.get(project, 0)) for _, sample in shares]
        rows.append((project, _amounts(held, entitled), blocks(columns(held, width), 2.0 * entitled or pool)))
    whole = [float(sum(sample.values())) for _, sample in shares]
    rows.append(("the pool", _amounts(whole, pool), blocks(columns(whole, width), pool)))
    return rows


def _amounts(held: Sequence[float], entitled: int) -> str:
    mean = sum(held) / len(held) if held else 0.0
    return f"{mean:.1f} of {entitled}"
