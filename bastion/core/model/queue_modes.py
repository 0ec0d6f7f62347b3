"""Who decides where: for each resource type either the scheduler in all of its places, or Kueue in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bastion.core.model.clusters import shown
from bastion.core.model.provisioning import Provisioning

# Where the file names the places, and what is wrong with them.
Finding = tuple[tuple[str | int, ...], str]

_REMEDY = "give the type places with a queue only, or places without one only"


def mixed(settings: Provisioning, own_zones: Iterable[str]) -> Iterator[Finding]:
    """Yield where a resource type mixes both. `own_zones`: the types whose table has zones; others use the defaults.

    A tier's zones for all types do not concern a type that Kueue decides, because tiers do not.
    """
    own = set(own_zones)
    told: set[tuple[str | int, ...]] = set()
    for resource_type, nodes in settings.resource_types.items():
        if not _mixes(settings, nodes.zones):
            yield from _in_tiers(settings, resource_type)
            continue
        path = ("types", resource_type, "zones") if resource_type in own else ("defaults", "zones")
        if path not in told:  # the defaults may concern every type
            told.add(path)
            yield path, f"{'.'.join(path)}: {_why(settings, nodes.zones, resource_type)}; {_REMEDY}"


def _in_tiers(settings: Provisioning, resource_type: str) -> Iterator[Finding]:
    nodes = settings.resource_types[resource_type]
    for number, tier in enumerate(settings.tiers):
        zones = tier.zones.get(resource_type)
        if zones is None:
            zones = () if settings.is_delegated(resource_type) else tier.zones.get("", ())
        if _mixes(settings, (nodes.zones[0], *zones)):
            why = _why(settings, (nodes.zones[0], *zones), resource_type)
            yield ("tiers", number, "zones"), f"tiers[{number}].zones: {why}; {_REMEDY}"


def _mixes(settings: Provisioning, zones: Iterable[str]) -> bool:
    return len({bool(settings.queue_of(zone)) for zone in zones}) > 1


def _why(settings: Provisioning, zones: tuple[str, ...], resource_type: str) -> str:
    kueue = next(zone for zone in zones if settings.queue_of(zone))
    ours = next(zone for zone in zones if not settings.queue_of(zone))
    return (
        f"{resource_type} mixes two modes: Kueue decides in {shown(kueue)}, which has a queue, "
        f"and the scheduler decides in {shown(ours)}"
    )
