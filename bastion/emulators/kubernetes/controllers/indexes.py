"""Completion indexes in a Job's status: `1,3-5,7`, as pkg/controller/job/indexed_job_utils.go writes them."""

from __future__ import annotations

from collections.abc import Iterable


def parse(text: str, completions: int) -> set[int]:
    """Indexes beyond `completions` are left out."""
    found: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        found.update(range(int(first), min(int(last or first), completions - 1) + 1))
    return found


def render(indexes: Iterable[int]) -> str:
    """Two neighbors are listed (`3,4`); from three on they are a range (`3-5`)."""
    parts: list[list[int]] = []
    for index in sorted(indexes):
        if parts and parts[-1][-1] == index - 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    words: list[str] = []
    for run in parts:
        if len(run) > 2:
            words.append(f"{run[0]}-{run[-1]}")
        else:
            words.extend(str(index) for index in run)
    return ",".join(words)
