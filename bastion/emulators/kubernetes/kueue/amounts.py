"""What pods ask for, in Kueue's units: thousandths of a CPU, and whole numbers of everything else.

Sources: kueue pkg/resources/{requests,formatter}.go, apimachinery pkg/api/resource.
"""

from __future__ import annotations

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers import quantities

_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_BYTES = ("memory", "ephemeral-storage")


def amount(resource: str, quantity: str | float) -> int:
    """Raises ValueError."""
    milli = quantities.milli(quantity)
    return milli if resource == "cpu" else -(-milli // 1000)


def of_pod(pod_spec: Obj) -> dict[str, int]:
    """The requests of one pod; a limit without a request is one (kueue pkg/workload/resources.go, AdjustResources)."""
    asked = quantities.requests_of({"spec": pod_spec})
    del asked["pods"]
    for name, overhead in (pod_spec.get("overhead") or {}).items():
        asked[name] = asked.get(name, 0) + quantities.milli(overhead)
    return {name: milli if name == "cpu" else -(-milli // 1000) for name, milli in asked.items()}


def text(resource: str, value: int) -> str:
    """As Kueue writes it: `1500m`, `8Gi`, `4k`."""
    if resource == "cpu":
        return f"{value}m" if value % 1000 else _scaled(value // 1000, 1000, _DECIMAL)
    if (resource in _BYTES or resource.startswith("hugepages-")) and abs(value) >= 1024:
        return _scaled(value, 1024, _BINARY)
    return _scaled(value, 1000, _DECIMAL)


def _scaled(value: int, base: int, units: tuple[str, ...]) -> str:
    unit = 0
    while value and value % base == 0 and unit + 1 < len(units):
        value, unit = value // base, unit + 1
    return f"{value}{units[unit]}"
