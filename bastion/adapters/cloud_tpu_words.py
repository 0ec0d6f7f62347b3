"""What the Cloud TPU API says, in the port's words: states, failures of creations, labels.

The table of failures is what users of the real service report; the API documents only the codes.
"""

from __future__ import annotations

import hashlib
import re

from google.cloud import tpu_v2

from bastion.core.errors import ProvisionerError, ProvisionerRefused, SliceExists, Stockout
from bastion.core.slices import SliceState

_LABEL = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_LABEL_MAX_CHARS = 63

_State = tpu_v2.Node.State
_STATES = {
    int(_State.CREATING): SliceState.CREATING,
    int(_State.READY): SliceState.READY,
    int(_State.DELETING): SliceState.DELETING,
    # Whatever interrupts a node interrupts its run: the hosts come back, if at all, as another boot.
    **{
        int(state): SliceState.LOST
        for state in (
            _State.RESTARTING,
            _State.REIMAGING,
            _State.REPAIRING,
            _State.STOPPED,
            _State.STOPPING,
            _State.STARTING,
            _State.PREEMPTED,
            _State.TERMINATED,
            _State.HIDING,
            _State.HIDDEN,
            _State.UNHIDING,
            _State.UNKNOWN,
        )
    },
}


def slice_state(state: int) -> SliceState:
    """The port's state; one that this version does not know counts as creating, which harms no running job."""
    return _STATES.get(int(state), SliceState.CREATING)


def status_message(node: tpu_v2.Node) -> str:
    """What people should know of a node that is not simply well; empty otherwise."""
    parts = []
    if slice_state(node.state) is SliceState.LOST:
        parts.append(f"the node is {_State(node.state).name}")
    if node.health_description:
        parts.append(node.health_description)
    parts.extend(
        f"{symptom.symptom_type.name.lower().replace('_', ' ')} on worker {symptom.worker_id}: {symptom.details}"
        for symptom in node.symptoms
    )
    return "; ".join(parts)


def creation_failure(code: int, message: str) -> ProvisionerError:
    """Why a creation's operation failed, by its google.rpc.Code and words."""
    text = f"{message} (code {code})"
    match code:
        case 8 | 13:
            # 13, "an internal error has occurred", is also what a spot stock-out looks like.
            return Stockout(text)
        case 9 if "capacity" in message.lower():
            return Stockout(text)  # an empty reservation; seen without any reservation, too
        case 3 if "PREEMPTED" in message:
            return ProvisionerError(f"pre-empted while it was being created: {text}")
        case 6:
            return SliceExists(text)
        case 3 | 7 | 9:
            return ProvisionerRefused(text)
        case _:
            return ProvisionerError(text)


def label_value(text: str) -> str:
    """A label's value for any text: itself where it is allowed, else made so, with a digest that keeps it apart."""
    if _LABEL.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    cleaned = re.sub(r"[^a-z0-9_-]", "-", text.lower())[: _LABEL_MAX_CHARS - 9].lstrip("-_")
    return f"{cleaned}-{digest}" if cleaned else digest
