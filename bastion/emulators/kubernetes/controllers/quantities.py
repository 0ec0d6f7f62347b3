"""Resource quantities, such as `500m` and `2Gi` (apimachinery pkg/api/resource/quantity.go), in thousandths."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from decimal import Decimal

from bastion.emulators.kubernetes.client import Obj

_QUANTITY = re.compile(r"([+-]?[0-9.]+)([eE][+-]?[0-9]+|[KMGTPE]i|[numkMGTPE]|)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


@functools.lru_cache(maxsize=4096)
def milli(quantity: str | float) -> int:
    """Return thousandths, rounded up. Raises ValueError."""
    found = _QUANTITY.fullmatch(str(quantity).strip())
    if found is None:
        raise ValueError(f"{quantity!r} is not a valid quantity; write 4, 500m or 2Gi")
    number, unit = Decimal(found[1]), found[2]
    if unit in _BINARY:
        value = number * (1 << _BINARY[unit])
    elif unit in _DECIMAL:
        value = number.scaleb(_DECIMAL[unit])
    else:
        value = number.scaleb(int(unit[1:]))
    return math.ceil(value * 1000)


def requests_of(pod: Obj) -> dict[str, int]:
    """What a pod asks of its node, in thousandths: the sum of its containers, at least each init container's.

    A request that is missing is the limit (pkg/apis/core/v1/defaults.go). Every pod takes one of `pods`.
    """
    spec = pod["spec"]
    total = _sum(_requests(container) for container in spec["containers"])
    for container in spec.get("initContainers") or ():
        for name, amount in _requests(container).items():
            total[name] = max(total.get(name, 0), amount)
    return {**total, "pods": 1000}


def _requests(container: Obj) -> dict[str, int]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: milli(quantity) for name, quantity in asked.items()}


def _sum(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total
