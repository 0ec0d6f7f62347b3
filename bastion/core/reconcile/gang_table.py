"""What is done about a slice, in every state that the Cloud TPU API has and every phase of its job, as one table.

Nothing is decided here: `reconcile` decides, one test for each cell holds the table against it,
and `docs/reference/slice-states.md` is rendered from it. The adapter's words for the API's states are held against
`NODE_STATES` and `QUEUED_STATES` by another test.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from bastion.core.model.gangs import GangState


class Phase(str, Enum):
    """How far a job's attempt is, as its state says."""

    STARTING = "starting"
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    OVER = "over"


PHASES: Final[Mapping[Phase, str]] = {
    Phase.STARTING: "the intent is written, the gang asked for, and no host has passed the gate",
    Phase.WAITING: "the same, and the API has said that there is no capacity yet",
    Phase.RUNNING: "worker 0 has passed the gate",
    Phase.STOPPING: "the end is decided: the command ended, or it is evicted, cancelled, given up",
    Phase.OVER: "no attempt owns the gang: a crash left it, or a request that was thought lost came late",
}


class Seen(str, Enum):
    """What a look at a gang gives: a state of the port, or none."""

    ABSENT = "absent"
    SILENT = "silent"
    WAITING = GangState.WAITING.value
    CREATING = GangState.CREATING.value
    READY = GangState.READY.value
    DELETING = GangState.DELETING.value
    LOST = GangState.LOST.value
    FAILED = GangState.FAILED.value


class Action(str, Enum):
    """What is done; the value is how the docs tell it."""

    ASK = "ask for it"
    RECORD_WAIT = "record the wait"
    NOTE_CAPACITY = "note the capacity"
    AWAIT_HOSTS = "await its hosts"
    GO_ON = "go on"
    NOT_NOW = "nothing now"
    LOST = "lost"
    BY_CAUSE = "end by cause"
    STOP_FIRST = "stop, then delete"
    DELETE = "delete"
    AWAIT_END = "await its end"
    END = "over"
    SWEEP = "close and delete"
    KEEP_AWAY = "no new attempt"
    NOTHING = "nothing"


ACTIONS: Final[Mapping[Action, str]] = {
    Action.ASK: "It is asked for, again if need be: the name is the run's, so there is never a second one. Only if the "
    "API has said why its creation failed, the attempt ends by that cause.",
    Action.RECORD_WAIT: "The API's word, the zone and since when are recorded and shown. After `zone_wait_seconds` the "
    "next zone is asked, if there is one; after the job's `max_wait_seconds` the job fails with 75.",
    Action.NOTE_CAPACITY: "The wait is over; its hosts have `provision_seconds` from now on.",
    Action.AWAIT_HOSTS: "Its hosts have `provision_seconds` (twice that from 64 hosts on, three times from 256 on) to "
    "come up and to pass the gate; then it is lost.",
    Action.GO_ON: "Nothing: what its hosts report, and whether they beat, decides.",
    Action.NOT_NOW: "Nothing in this tick; the job stays as it is and is charged.",
    Action.LOST: "The attempt ends as lost to the infrastructure; what is left of the gang is deleted, and after a "
    "pause another attempt follows, so often as the budget allows.",
    Action.BY_CAUSE: "The attempt ends by what the API gives as the cause: capacity (the next zone, or a pause), "
    "refused (the job ends with the API's words and what to do), or infrastructure; what is left is deleted.",
    Action.STOP_FIRST: "If no host has passed the gate, it is closed; else the hosts are told to stop and given their "
    "grace. Then the gang is deleted. While it is open whose failure it was, nothing is deleted.",
    Action.DELETE: "Its gate is closed or its hosts are told to stop, and it is deleted without waiting for them; "
    "asked for again in every tick as long as it lasts, because it holds quota.",
    Action.AWAIT_END: "It is waited for, and charged until a look at its very name says that it is gone.",
    Action.END: "The attempt is over, and what it held is free.",
    Action.SWEEP: "Its gate is closed, then it is deleted; no new attempt of the job begins before it is gone.",
    Action.KEEP_AWAY: "No new attempt of the job begins until that is known to be over.",
    Action.NOTHING: "Nothing: the job's next attempt may begin.",
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

# As `google.cloud.tpu_v2.Node.State` names them. Whatever interrupts a node interrupts its run: its hosts come back, if
# at all, as another boot.
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

# As `google.cloud.tpu_v2.QueuedResourceState.State` names them.
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
    """Every row of the rendered table, by what people see."""
    return [
        ("not found", Seen.ABSENT),
        ("the zone does not answer", Seen.SILENT),
        *((f"queued resource {name}", seen) for name, seen in QUEUED_STATES.items()),
        *((f"node {name}", seen) for name, seen in NODE_STATES.items()),
    ]
