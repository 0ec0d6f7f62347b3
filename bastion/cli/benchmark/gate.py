"""The flag `--gate` of commands about benchmarks."""

from __future__ import annotations

import re

from absl import flags

from bastion.cli.output import plain
from bastion.core.errors import Refused

_PERCENT = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,6})?) ?%")
_PART = re.compile(r"0?\.[0-9]{1,8}")


def define(values: flags.FlagValues, meaning: str) -> None:
    flags.DEFINE_string("gate", None, meaning, flag_values=values)


def read(values: flags.FlagValues) -> float | None:
    """Return the gate as a part, `0.05` for `5%`; None if it was not given."""
    text = values.gate
    if text is None:
        return None
    percent = _PERCENT.fullmatch(text)
    gate = float(percent[1]) / 100 if percent else float(text) if _PART.fullmatch(text) else 0.0
    if not 0 < gate < 1:
        raise Refused(f"--gate={plain(text)} must be a percentage above 0% and below 100%, like --gate=5%")
    return gate
