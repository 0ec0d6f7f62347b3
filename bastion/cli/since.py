"""The flag `--since`: a time ago, a day, or an instant."""

from __future__ import annotations

import re

from bastion.cli.output import plain
from bastion.core import durations
from bastion.core.errors import Refused
from bastion.core.instants import from_rfc3339, to_rfc3339

_SEVERAL = re.compile(r"(?:[0-9]+[smhd])+")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def since(text: str, now: float) -> float:
    """Return the instant, in seconds since the epoch; raises Refused if it is none, or in the future."""
    seconds = ago(text)
    if seconds is not None:
        return max(0.0, now - seconds)
    try:
        instant = from_rfc3339(f"{text}T00:00:00Z" if _DAY.fullmatch(text) else text)
    except (ValueError, OverflowError) as error:
        raise Refused(
            f"--since={plain(text)} is not a valid time; use 90s, 10m, 1h30m or 3d for a time ago, a day like "
            f"{to_rfc3339(now)[:10]} (UTC), or a time with its zone, like {to_rfc3339(now)[:19]}Z or "
            f"{to_rfc3339(now)[:19]}+02:00"
        ) from error
    if instant > now:
        raise Refused(f"--since={plain(text)} is in the future; it is {to_rfc3339(now)[:19]}Z now")
    return max(0.0, instant)


def ago(text: str) -> float | None:
    """Return the seconds of `90s`, `1h30m` or `3d`; None if the text has another form."""
    if not _SEVERAL.fullmatch(text):
        return durations.seconds_of(text)
    parts = [durations.seconds_of(each) for each in re.findall(r"[0-9]+[smhd]", text)]
    return None if None in parts else float(sum(part or 0 for part in parts))
