"""The nodes that exist in this tick, as both provisioners list them.

Layer: daemon. Nodes are listed after the bucket, so that a node's state is never older than the record it is judged by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bastion.core.errors import BastionError, ProvisionerRefused, Stockout
from bastion.core.keys import Run
from bastion.core.slices import SliceState, SliceStatus
from bastion.core.world import StrayNode
from bastion.ports import Provisioner


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioners:
    """Where nodes come from: slices, and the bastion's own host for jobs without one."""

    slices: Provisioner
    bastion_host: Provisioner

    def of(self, *, on_bastion: bool) -> Provisioner:
        return self.bastion_host if on_bastion else self.slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Nodes of one provisioner in this tick; `problem` is not empty when it did not answer."""

    nodes: Mapping[str, SliceStatus]
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """All nodes of one tick.

    Attributes:
        by_uid: Nodes with a run of ours in their label, by the uid of its job.
        problems: What could not be listed, or is not ours, for people.
    """

    slices: Listing
    bastion_host: Listing
    by_uid: Mapping[str, tuple[StrayNode, ...]]
    problems: tuple[str, ...]

    def of(self, *, on_bastion: bool) -> Listing:
        return self.bastion_host if on_bastion else self.slices

    @property
    def lost_runs(self) -> set[str]:
        return {
            status.run
            for listing in (self.slices, self.bastion_host)
            for status in listing.nodes.values()
            if status.state is SliceState.LOST
        }

    def orphans(self, uids: Iterable[str]) -> tuple[StrayNode, ...]:
        """Nodes of none of these uids."""
        known = set(uids)
        return tuple(node for uid, nodes in sorted(self.by_uid.items()) if uid not in known for node in nodes)


def list_nodes(provisioners: Provisioners) -> Nodes:
    """Asks both provisioners; one that does not answer is a problem, not an error."""
    problems: list[str] = []
    slices = _list(provisioners.slices, "slices", problems)
    host = _list(provisioners.bastion_host, "the bastion's own host", problems)
    by_uid: dict[str, tuple[StrayNode, ...]] = {}
    for listing, on_bastion in ((slices, False), (host, True)):
        for status in listing.nodes.values():
            run = Run.parse(status.run)
            if run is None:  # rule 4: only what is labelled with a run of ours is ever deleted
                problems.append(f"the node {status.node_id} has our label and no run of ours; look at it")
                continue
            by_uid[run.uid] = (*by_uid.get(run.uid, ()), StrayNode(status=status, on_bastion=on_bastion))
    return Nodes(slices=slices, bastion_host=host, by_uid=by_uid, problems=tuple(problems))


def _list(provisioner: Provisioner, what: str, problems: list[str]) -> Listing:
    try:
        return Listing(nodes={status.node_id: status for status in provisioner.list()})
    except BastionError as error:
        problems.append(f"cannot list {what}: {error}")
        return Listing(nodes={}, problem=str(error))


def creation_failure(error: Exception | None) -> tuple[str, str] | None:
    """`(cause, message)` of a creation that failed after it was accepted."""
    match error:
        case None:
            return None
        case Stockout():
            return "capacity", str(error)
        case ProvisionerRefused():
            return "refused", str(error)
        case _:
            return "infrastructure", str(error)
