"""What differs between the export of a quota file and a cluster's objects.

Fields that the export never writes are others' business: admission checks, topologies, weights of fair sharing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from bastion.adapters.kubernetes import terms

Object = Mapping[str, Any]
ABSENT: Final = None
_DELETED: Final = "being deleted"

# By kind: the collection, and the fields that the export decides, also where it leaves them out.
_KINDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ResourceFlavor": ("resourceflavors", ("nodeLabels", "nodeTaints", "tolerations")),
    "Cohort": ("cohorts", ("parentName", "resourceGroups")),
    "ClusterQueue": (
        "clusterqueues",
        (
            "cohortName",
            "queueingStrategy",
            "stopPolicy",
            "namespaceSelector",
            "preemption",
            "flavorFungibility",
            "resourceGroups",
        ),
    ),
    "LocalQueue": ("localqueues", ("clusterQueue", "stopPolicy")),
    "WorkloadPriorityClass": ("workloadpriorityclasses", ()),
}
_QUANTITY = re.compile(r"([0-9]+(?:[.][0-9]+)?)([a-zA-Z]{0,2})")
_SUFFIXES = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    **{suffix: Fraction(1000 ** (power + 1)) for power, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": Fraction(1024 ** (power + 1)) for power, suffix in enumerate("KMGTPE")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field, or a whole object if `field` is empty. ABSENT where there is none."""

    kind: str
    name: str
    field: str
    wanted: Any
    found: Any

    def __str__(self) -> str:
        what = f"{self.kind} {self.name}"
        if not self.field:
            return f"{what}: {self._whole()}"
        return f"{what}: {self.field} is {_shown(self.found)}; the quota file says {_shown(self.wanted)}"

    def _whole(self) -> str:
        if self.wanted is ABSENT:
            return "not in the export; delete it by hand"
        if self.found is ABSENT:
            return "missing"
        return "being deleted, once nothing uses it; then apply the export again"


def read(items: Callable[[str], Iterable[Object]], namespace: str) -> list[Object]:
    """Return all objects of the exported kinds. `items`: lists the collection at an API path."""
    return [{**item, "kind": kind} for kind in _KINDS for item in items(collection(kind, namespace))]


def collection(kind: str, namespace: str) -> str:
    """Return the API path of an exported kind's objects."""
    scope = f"/namespaces/{namespace}" if kind == "LocalQueue" else ""
    return f"/apis/{terms.KUEUE_API}{scope}/{_KINDS[kind][0]}"


def differences(wanted: Sequence[Object], present: Sequence[Object], *, label: str) -> Iterator[Difference]:
    """Yield what differs: fields, missing objects, and objects with our label that the export does not have."""
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in present}
    for each in wanted:
        kind, name = each["kind"], each["metadata"]["name"]
        found = by_name.pop((kind, name), None)
        if found is None:
            yield Difference(kind=kind, name=name, field="", wanted=True, found=ABSENT)
            continue
        if found["metadata"].get("deletionTimestamp"):
            # Kueue admits nothing more there, and deletes it once nothing uses it.
            yield Difference(kind=kind, name=name, field="", wanted=True, found=_DELETED)
            continue
        for field, one, other in _fields(each, found):
            yield Difference(kind=kind, name=name, field=field, wanted=one, found=other)
    for (kind, name), rest in by_name.items():
        if _label(rest) == label:
            yield Difference(kind=kind, name=name, field="", wanted=ABSENT, found=True)


def _fields(wanted: Object, found: Object) -> Iterator[tuple[str, Any, Any]]:
    yield from _compare(_label(wanted), _label(found), f"metadata.labels.{terms.LABEL_BASTION}")
    yield from _compare(wanted.get("value"), found.get("value"), "value")
    ours, theirs = wanted.get("spec") or {}, found.get("spec") or {}
    for field in _KINDS[wanted["kind"]][1]:
        yield from _compare(ours.get(field), theirs.get(field), f"spec.{field}")


def _compare(wanted: Any, found: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in dict.fromkeys((*wanted, *found)):
            yield from _compare(wanted.get(key), found.get(key), f"{path}.{key}")
    elif _is_named(wanted) and _is_named(found):
        ours, theirs = _by_name(wanted), _by_name(found)
        for name in dict.fromkeys((*ours, *theirs)):
            yield from _compare(ours.get(name), theirs.get(name), f"{path}[{name}]")
        if ours.keys() == theirs.keys() and [*ours] != [*theirs]:
            yield f"the order of {path}", ", ".join(ours), ", ".join(theirs)
    elif wanted != found and not _same_quantity(wanted, found):
        yield path, wanted, found


def _is_named(value: Any) -> bool:
    """Whether it is a list of resource groups, flavors or resources: by their names, a difference is short."""
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) and _name(each) for each in value)


def _by_name(value: Sequence[Object]) -> dict[str, Object]:
    return {_name(each): each for each in value}


def _name(value: Object) -> str:
    return str(value.get("name") or ",".join(map(str, value.get("coveredResources") or ())))


def _label(value: Object) -> Any:
    return (value["metadata"].get("labels") or {}).get(terms.LABEL_BASTION)


def _same_quantity(one: Any, other: Any) -> bool:
    """Whether two texts are the same number: an API server may keep 1000 as it is, or as 1k."""
    first, second = _number(one), _number(other)
    return first is not None and first == second


def _number(value: Any) -> Fraction | None:
    matched = _QUANTITY.fullmatch(str(value)) if isinstance(value, (str, int)) else None
    suffix = _SUFFIXES.get(matched[2]) if matched is not None else None
    return Fraction(matched[1]) * suffix if matched is not None and suffix is not None else None


def _shown(value: Any) -> str:
    return "absent" if value is ABSENT else str(value)
