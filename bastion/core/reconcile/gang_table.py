"""The action on a gang, by state of the Cloud TPU API and phase of its job, as one table.

Tests hold `reconcile` against each cell, and the adapter's state names against `NODE_STATES` and `QUEUED_STATES`.
`docs/reference/slice-states.md` is rendered from this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from bastion.core.model.gangs import GangState


class Phase(str, Enum):
    STARTING = "starting"
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    OVER = "over"


PHASES: Final[Mapping[Phase, str]] = {
    Phase.STARTING: "the intent is written, the gang is requested, and no host has passed the gate",
    Phase.WAITING: "the same, and the API reported no capacity yet",
    Phase.RUNNING: "worker 0 has passed the gate",
    Phase.STOPPING: "the end is decided: the command ended, or the attempt was evicted, cancelled or given up",
    Phase.OVER: "no attempt owns the gang: a crash left it, or a lost request arrived late",
}


class Seen(str, Enum):
    """The result of a look at a gang: a state of the port, or none."""

    ABSENT = "absent"
    SILENT = "silent"
    WAITING = GangState.WAITING.value
    CREATING = GangState.CREATING.value
    READY = GangState.READY.value
    DELETING = GangState.DELETING.value
    LOST = GangState.LOST.value
    FAILED = GangState.FAILED.value


class Action(str, Enum):
    """The action; its value is the text of the docs."""

    ASK = "request it"
    RECORD_WAIT = "record the wait"
    NOTE_CAPACITY = "note the capacity"
    AWAIT_HOSTS = "wait for its hosts"
    GO_ON = "go on"
    NOT_NOW = "nothing yet"
    LOST = "lost"
    BY_CAUSE = "end by cause"
    STOP_FIRST = "stop, then delete"
    DELETE = "delete"
    AWAIT_END = "wait for its end"
    END = "over"
    SWEEP = "close and delete"
    KEEP_AWAY = "no new attempt"
    NOTHING = "nothing"


ACTIONS: Final[Mapping[Action, str]] = {
    Action.ASK: "The gang is requested, again if necessary: its name is the run's, so there is never a second one. "
    "If the API reports why its creation failed, the attempt ends with that cause.",
    Action.RECORD_WAIT: "The API's state, the zone and the start of the wait are recorded and shown. "
    "After `zone_wait_seconds` the next zone is tried, if there is one; "
    "after the job's `max_wait_seconds` the job fails with 75.",
    Action.NOTE_CAPACITY: "The wait is over; its hosts have `provision_seconds` from now.",
    Action.AWAIT_HOSTS: "Its hosts have `provision_seconds` (twice that from 64 hosts on, three times from 256 on) to "
    "come up and to pass the gate; then the gang counts as lost.",
    Action.GO_ON: "Nothing: the hosts' reports and heartbeats decide.",
    Action.NOT_NOW: "Nothing in this tick; the job keeps its state and its charge.",
    Action.LOST: "The attempt ends as an infrastructure failure. The rest of the gang is deleted. After a "
    "pause another attempt follows, as often as the budget allows.",
    Action.BY_CAUSE: "The attempt ends with the API's cause: capacity (the next zone, or a pause), "
    "refused (the job ends with the API's message and what to do), or infrastructure. The rest of the gang is deleted.",
    Action.STOP_FIRST: "If no host has passed the gate, it is closed; otherwise the hosts get an order to stop "
    "and their grace. Then the gang is deleted. Until the class of a failure is settled, nothing is deleted.",
    Action.DELETE: "Its gate is closed or its hosts get an order to stop. The gang is deleted without waiting "
    "for them, again in every tick while it exists, because it holds quota.",
    Action.AWAIT_END: "The gang stays charged until a lookup of its name says that it is gone.",
    Action.END: "The attempt has ended; its units are free.",
    Action.SWEEP: "Its gate is closed, then it is deleted. No new attempt of the job begins before it is gone.",
    Action.KEEP_AWAY: "No new attempt of the job begins until it is gone.",
    Action.NOTHING: "Nothing: the next attempt of the job may begin.",
}

_LOST_ALL: Final = {
    Phase.STARTING: Action.LOST,
    Phase.WAITING: Action.LOST,
    Phase.RUNNING: Action.LOST,
}

TABLE: Final[Mapping[Seen, Mapping[Phase, Action]]] = {
    Seen.ABSENT: {
        Phase.STARTING: Action.ASK,
        Phase.WAITING: Action.ASK,
        Phase.RUNNING: Action.LOST,
        Phase.STOPPING: Action.END,
        Phase.OVER: Action.NOTHING,
    },
    Seen.SILENT: {
        Phase.STARTING: Action.NOT_NOW,
        Phase.WAITING: Action.NOT_NOW,
        Phase.RUNNING: Action.NOT_NOW,
        Phase.STOPPING: Action.NOT_NOW,
        Phase.OVER: Action.KEEP_AWAY,
    },
    Seen.WAITING: {
        Phase.STARTING: Action.RECORD_WAIT,
        Phase.WAITING: Action.RECORD_WAIT,
        Phase.RUNNING: Action.GO_ON,
        Phase.STOPPING: Action.STOP_FIRST,
        Phase.OVER: Action.SWEEP,
    },
    Seen.CREATING: {
        Phase.STARTING: Action.AWAIT_HOSTS,
        Phase.WAITING: Action.NOTE_CAPACITY,
        Phase.RUNNING: Action.GO_ON,
        Phase.STOPPING: Action.STOP_FIRST,
        Phase.OVER: Action.SWEEP,
    },
    Seen.READY: {
        Phase.STARTING: Action.AWAIT_HOSTS,
        Phase.WAITING: Action.NOTE_CAPACITY,
        Phase.RUNNING: Action.GO_ON,
        Phase.STOPPING: Action.STOP_FIRST,
        Phase.OVER: Action.SWEEP,
    },
    Seen.DELETING: {**_LOST_ALL, Phase.STOPPING: Action.AWAIT_END, Phase.OVER: Action.KEEP_AWAY},
    Seen.LOST: {**_LOST_ALL, Phase.STOPPING: Action.DELETE, Phase.OVER: Action.SWEEP},
    Seen.FAILED: {
        Phase.STARTING: Action.BY_CAUSE,
        Phase.WAITING: Action.BY_CAUSE,
        Phase.RUNNING: Action.LOST,
        Phase.STOPPING: Action.DELETE,
        Phase.OVER: Action.SWEEP,
    },
}

# Names of `google.cloud.tpu_v2.Node.State`. An interrupted node ends its run: its hosts return, if ever, after a boot.
NODE_STATES: Final[Mapping[str, Seen]] = {
    "CREATING": Seen.CREATING,
    "READY": Seen.READY,
    "RESTARTING": Seen.LOST,
    "REIMAGING": Seen.LOST,
    "DELETING": Seen.DELETING,
    "REPAIRING": Seen.LOST,
    "STOPPED": Seen.LOST,
    "STOPPING": Seen.LOST,
    "STARTING": Seen.LOST,
    "PREEMPTED": Seen.LOST,
    "TERMINATED": Seen.LOST,
    "HIDING": Seen.LOST,
    "HIDDEN": Seen.LOST,
    "UNHIDING": Seen.LOST,
    "UNKNOWN": Seen.LOST,
}

# Names of `google.cloud.tpu_v2.QueuedResourceState.State`.
QUEUED_STATES: Final[Mapping[str, Seen]] = {
    "CREATING": Seen.WAITING,
    "ACCEPTED": Seen.WAITING,
    "WAITING_FOR_RESOURCES": Seen.WAITING,
    "PROVISIONING": Seen.CREATING,
    "ACTIVE": Seen.READY,
    "SUSPENDING": Seen.LOST,
    "SUSPENDED": Seen.LOST,
    "FAILED": Seen.FAILED,
    "DELETING": Seen.DELETING,
}


def rows() -> list[tuple[str, Seen]]:
    return [
        ("not found", Seen.ABSENT),
        ("the zone does not answer", Seen.SILENT),
        *((f"queued resource {name}", seen) for name, seen in QUEUED_STATES.items()),
        *((f"node {name}", seen) for name, seen in NODE_STATES.items()),
    ]
