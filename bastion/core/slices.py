"""Slices as the scheduler's side sees them: what to create, and what a provisioner says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class SliceState(str, Enum):
    """What a provisioner says of a node."""

    CREATING = "creating"
    READY = "ready"
    DELETING = "deleting"
    # Gone bad for a reason outside of the job (pre-empted, maintenance, failed repair); must still be deleted.
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRequest:
    """One node to create.

    Attributes:
        node_id: `b-<run>` or, with several replicas, `b-<run>-<slice>`: unique in a zone, at most 63 characters.
        bastion: The bastion's name; becomes a label, and only nodes with it are ever listed or deleted.
        run: `<uid>-<attempt>`; becomes a label.
        token: The attempt's random run token; proves that a node found under this name is ours.
        accelerator_type: As the Cloud TPU API spells it, for example `v4-32`; empty for the bastion's own host.
        runtime_version: Software version of the node; empty for the bastion's own host.
        agent_arguments: JSON for the worker agent, see `bastion.core.protocol.AgentArguments`.
    """

    node_id: str
    bastion: str
    run: str
    token: str
    accelerator_type: str
    runtime_version: str
    agent_arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceStatus:
    """One node as the provisioner sees it. `message` is for people: state of health, why it was lost."""

    node_id: str
    run: str
    token: str
    state: SliceState
    message: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
