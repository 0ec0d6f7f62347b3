"""Instants: seconds since the epoch (UTC) in memory, RFC 3339 with microseconds in documents."""

from __future__ import annotations

from datetime import datetime, timezone


def to_rfc3339(seconds: float) -> str:
    """`1.5` becomes `1970-01-01T00:00:01.500000Z`: fixed width, so that text order is time order."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def from_rfc3339(text: str) -> float:
    """Read RFC 3339 with any offset; raises ValueError if it is not an instant."""
    moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write it like 2026-01-02T03:04:05.000006Z")
    return moment.timestamp()


def duration(seconds: float) -> str:
    """`45s`, `12m`, `3h20m`, `2d4h`; negative values give `0s`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours}h" if hours else f"{days}d"


def exact_duration(seconds: int) -> str:
    """`45s`, `1m40s`, `2h`, `1d1s`: as a limit is given, without rounding."""
    parts = (("d", seconds // 86400), ("h", seconds // 3600 % 24), ("m", seconds // 60 % 60), ("s", seconds % 60))
    return "".join(f"{count}{unit}" for unit, count in parts if count) or "0s"


def utc_day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y%m%d")
