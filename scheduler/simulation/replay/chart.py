"""Shares over time as text: a row of blocks per project.

Layer: scheduler, pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

_BLOCKS = " ▁▂▃▄▅▆▇█"


def columns(samples: Sequence[float], width: int) -> list[float]:
    """Means over `width` stretches of equal length; fewer columns where there are fewer samples."""
    count = min(width, len(samples))
    borders = [index * len(samples) // count for index in range(count + 1)] if count else [0]
    return [sum(samples[begin:end]) / (end - begin) for begin, end in itertools.pairwise(borders)]


def blocks(values: Sequence[float], full: float) -> str:
    """Each value as a block whose height is its part of `full`; whatever is above 0 is seen."""
    text = ""
    for value in values:
        height = min(1.0, value / full) if full > 0 else 0.0
        text += _BLOCKS[max(round(height * (len(_BLOCKS) - 1)), 1 if value > 0 else 0)]
    return text


def share_rows(
    shares: Sequence[tuple[float, Mapping[str, int]]], entitlements: Mapping[str, int], pool: int, width: int
) -> list[tuple[str, str, str]]:
    """What a chart of shares shows, a row for each project and one for the pool.

    Args:
        shares: Chips held by project, at instants of equal distance.
        width: Columns of the blocks.

    Returns:
        For each row: who, its mean and its entitlement (of the pool: its size) in chips, and the blocks. A full block
        is twice the entitlement, and of the pool all of it; a project entitled to nothing is drawn against the pool.
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
