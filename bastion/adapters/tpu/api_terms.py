"""The Cloud TPU API in the port's terms: states, failures of creations, labels.

The table of failures is what users of the real service report; the API documents only the codes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from enum import Enum

from google.cloud import tpu_v2

from bastion.core.errors import GangExists, ProvisionerError, ProvisionerRefused, Stockout
from bastion.core.model.gangs import GangState

_LABEL = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_LABEL_MAX_CHARS = 63
# Keys with `goog` at their beginning are Google's.
_USER_KEY = re.compile(r"(?!goog)[a-z][a-z0-9_-]{0,62}")
_USER_VALUE = re.compile(r"[a-z0-9_-]{0,63}")

# A limit of calls per minute, not of chips.
_RATE_LIMIT = re.compile(r"quota metric|per (minute|second|day)", re.IGNORECASE)
_NO_QUOTA = re.compile(r"\bLimit: 0(?![.\d]*[1-9])")

_State = tpu_v2.Node.State
_STATES = {
    int(_State.CREATING): GangState.CREATING,
    int(_State.READY): GangState.READY,
    int(_State.DELETING): GangState.DELETING,
    # Any interruption of a node ends its run: hosts that come back have rebooted.
    **{
        int(state): GangState.LOST
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

_Queued = tpu_v2.QueuedResourceState.State
_QUEUED_STATES = {
    int(_Queued.CREATING): GangState.WAITING,
    int(_Queued.ACCEPTED): GangState.WAITING,
    int(_Queued.WAITING_FOR_RESOURCES): GangState.WAITING,
    int(_Queued.PROVISIONING): GangState.CREATING,
    # Its nodes decide.
    int(_Queued.ACTIVE): GangState.READY,
    int(_Queued.SUSPENDING): GangState.LOST,
    int(_Queued.SUSPENDED): GangState.LOST,
    int(_Queued.FAILED): GangState.FAILED,
    int(_Queued.DELETING): GangState.DELETING,
}


def slice_state(state: int) -> GangState:
    """Return the port's state; an unknown one counts as creating, which harms no running job."""
    return _STATES.get(int(state), GangState.CREATING)


def queued_state(state: int) -> GangState:
    """Return the port's state of a queued resource; an unknown one counts as creating."""
    return _QUEUED_STATES.get(int(state), GangState.CREATING)


def queued_word(state: int) -> str:
    """Return the API's name of the state; its number if unknown."""
    return _Queued(state).name if state in _QUEUED_STATES else f"state {int(state)}"


def queued_message(state: tpu_v2.QueuedResourceState) -> str:
    """Return a message about a queued resource that was taken back; otherwise empty."""
    if queued_state(state.state) is not GangState.LOST:
        return ""
    by_user = state.state_initiator == tpu_v2.QueuedResourceState.StateInitiator.USER
    why = "its nodes were deleted by a user" if by_user else "it was preempted, or its hosts had maintenance"
    return f"the queued resource is {_Queued(state.state).name}: {why}"


def status_message(node: tpu_v2.Node) -> str:
    """Return a message about an unhealthy node; otherwise empty."""
    parts = []
    if slice_state(node.state) is GangState.LOST:
        parts.append(f"the node is {_State(node.state).name}")
    if node.health_description:
        parts.append(node.health_description)
    parts.extend(
        f"{_symptom(symptom.symptom_type)} on worker {symptom.worker_id}: {symptom.details}"
        for symptom in node.symptoms
    )
    return "; ".join(parts)


def _symptom(symptom: int) -> str:
    """Return the name; a value from a later version of the API is a plain number without a name."""
    return symptom.name.lower().replace("_", " ") if isinstance(symptom, Enum) else f"symptom {symptom}"


def creation_failure(code: int, message: str) -> ProvisionerError:
    """Return why a creation's operation failed, from its google.rpc.Code and message."""
    text = f"{message} (code {code})"
    refused = ProvisionerRefused(f"{text}; {remedy(message)}")
    match code:
        case 8 if refused_quota(message):
            return refused
        case 4 | 8 | 13:
            # 13, "an internal error has occurred", is also what a spot stockout looks like; 4: the wait timed out.
            return Stockout(text)
        case 9 if "capacity" in message.lower():
            return Stockout(text)  # an empty reservation; also seen without a reservation
        case 3 | 9 if "expired" in message.lower():
            return Stockout(text)  # a queued resource's wait timed out
        case 3 if "PREEMPTED" in message:
            return ProvisionerError(f"preempted while it was being created: {text}")
        case 6:
            return GangExists(text)
        case 3 | 7 | 9:
            return refused
        case _:
            return ProvisionerError(text)


# Advice for a refused creation, by the first phrase that occurs in the API's message.
_REMEDIES = (
    ("limit: 0", "ask for that quota of the project, or name a zone of another region in config/daemon.toml"),
    (
        "reservation",
        "correct the reservation in config/daemon.toml; 'gcloud alpha compute tpus reservations list' shows them",
    ),
    (
        "acceleratortype",
        "name a zone in config/daemon.toml that has this type; 'gcloud compute tpus accelerator-types list' shows them",
    ),
    (
        "permission",
        "give the daemon's identity roles/tpu.admin and the right to use the nodes' service account, or name a zone in "
        "config/daemon.toml that is open to the project",
    ),
    ("service account", "correct service_account in config/daemon.toml; 'gcloud iam service-accounts list' shows them"),
    ("network", "correct network and subnetwork in config/daemon.toml; 'gcloud compute networks list' shows them"),
    (
        "runtime",
        "correct runtime_version in config/daemon.toml; 'gcloud compute tpus tpu-vm versions list' shows them",
    ),
)


def remedy(message: str) -> str:
    """Return what to do about a creation that the API refused with this message."""
    text = message.lower()
    found = next((what for word, what in _REMEDIES if word in text), "")
    return found or "correct config/daemon.toml, or the job's --instance_type"


def refused_quota(message: str) -> bool:
    """Whether a quota of zero is exceeded, so that waiting does not help."""
    return _NO_QUOTA.search(message) is not None


def is_rate_limit(message: str) -> bool:
    """Whether RESOURCE_EXHAUSTED is about calls, not chips."""
    return _RATE_LIMIT.search(message) is not None


def user_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the user's labels that Google Cloud takes, unchanged; the others stay in the job's spec only.

    Rules: https://cloud.google.com/compute/docs/labeling-resources#requirements
    """
    return {key: value for key, value in labels.items() if _USER_KEY.fullmatch(key) and _USER_VALUE.fullmatch(value)}


def label_value(text: str) -> str:
    """Return a valid label value for any text: unchanged if valid, else changed and made unique with a digest."""
    if _LABEL.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    cleaned = re.sub(r"[^a-z0-9_-]", "-", text.lower())[: _LABEL_MAX_CHARS - 9].lstrip("-_")
    return f"{cleaned}-{digest}" if cleaned else digest
