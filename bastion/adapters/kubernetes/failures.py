"""The classes of a gang's failures on Kubernetes: by what its pods say, whose doing it was.

`docs/reference/kubernetes-states.md` is rendered from `CLASSES`; a test provokes each on the emulator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bastion.adapters.kubernetes import terms
from bastion.adapters.kubernetes.documents import Word
from bastion.adapters.kubernetes.seen import SeenPod
from bastion.core.model.gangs import GangFailure

# Fresh nodes may be denied an image for a moment.
IMAGE_DENIED_SECONDS = 120.0
IMAGE_ERROR_SECONDS = 600.0
CONFIG_ERROR_SECONDS = 120.0
OUT_OF_MEMORY_EXIT = 137
_NAMED = 3

_PULL_ERRORS = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable")
# A node that has just started cannot construct variables until it has read the services (kubelet_pods.go,
# makeEnvironmentVariables).
_CONFIG_ERROR = "CreateContainerConfigError"
_DENIED = re.compile(r"not found|manifest unknown|denied|unauthorized|forbidden|authentication|no such", re.IGNORECASE)
_EVICTIONS = ("Evicted", "TerminationByKubelet")
# Of a pod that exceeded a limit of its own, or its request when the disk was full (pkg/kubelet/eviction/helpers.go).
_EATEN = re.compile(
    r"Pod ephemeral local storage usage exceeds|exceeded its local ephemeral storage limit"
    r"|Usage of EmptyDir volume|has larger consumption of ephemeral-storage",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureClass:
    """One row: the sign, and the cause that follows (`bastion.core.model.job_record.Cause`)."""

    sign: str
    cause: str
    words: str


CLASSES: Final = (
    FailureClass(
        sign="a container ended with the reason `OOMKilled`, or its pod was evicted for its own ephemeral storage",
        cause="failed",
        words="the user's: exit code 137, with the worker. Output of the last seconds is lost. With tries left, "
        "another attempt follows",
    ),
    FailureClass(
        sign=f"a container ended with code {terms.EXIT_IMAGE}, or could not start (`StartError`)",
        cause="refused",
        words="the image cannot run the agent; the message says what it lacks",
    ),
    FailureClass(
        sign=f"`InvalidImageName`; `CreateContainerConfigError` for {CONFIG_ERROR_SECONDS:.0f} s",
        cause="refused",
        words="the image's name or the pod's settings are wrong",
    ),
    FailureClass(
        sign=f"an image that is not found or denied for {IMAGE_DENIED_SECONDS:.0f} s",
        cause="refused",
        words="the registry's message",
    ),
    FailureClass(
        sign=f"an image that cannot be pulled for another reason for {IMAGE_ERROR_SECONDS:.0f} s",
        cause="infrastructure",
        words="the registry's message",
    ),
    FailureClass(
        sign="a pod with the condition `DisruptionTarget`, deleted, evicted by its node, or failed in any other way",
        cause="infrastructure",
        words="the platform's reason",
    ),
)


def host_of(pod: SeenPod, hosts: int) -> int:
    """Return the pod's host number in the job; `hosts` is the number of hosts of one slice."""
    return pod.slice_index * hosts + pod.worker


def of_job(pods: Iterable[SeenPod], hosts: int) -> GangFailure | None:
    """Return the failure that is the job's own doing, or that of its image; None if there is none."""
    for pod in sorted(pods, key=lambda each: (each.slice_index, each.worker)):
        host = host_of(pod, hosts)
        if pod.ended is not None:
            reason, code, message = pod.ended
            if reason == "OOMKilled":
                return _eaten(host, "ran out of memory and was killed (OOMKilled)")
            if code == terms.EXIT_IMAGE and message.startswith(terms.NOT_BROUGHT):
                return _refused(message)
            if code == terms.EXIT_IMAGE and pod.disrupted is None:
                return _refused(
                    f"the image cannot run the agent: {message or 'it does not say why'}; use another --image"
                )
            if reason in ("StartError", "ContainerCannotRun"):
                text = (
                    f"the image cannot start bash: {message or reason}; use an image with bash and Python 3.10 or later"
                )
                return _refused(text)
        # Only the condition stays if all containers ended with code 0 (pkg/kubelet/kubelet_pods.go).
        for word in (pod.status, pod.disrupted):
            if word is not None and word.reason in _EVICTIONS and _EATEN.search(word.message):
                return _eaten(host, f"used up its ephemeral storage: {word.message}")
    return None


def of_wait(waiting: Word, seconds: float) -> GangFailure | None:
    """Return the failure of a container that has waited this long; None while it may still start."""
    if waiting.reason == "InvalidImageName" or (waiting.reason == _CONFIG_ERROR and seconds >= CONFIG_ERROR_SECONDS):
        return _refused(f"{waiting}; correct --image, or the pod settings in config/daemon.toml")
    if waiting.reason not in _PULL_ERRORS:
        return None
    if _DENIED.search(waiting.message):
        if seconds < IMAGE_DENIED_SECONDS:
            return None
        return _refused(
            f"the image cannot be pulled: {waiting.message}; correct --image, or give the cluster access to it "
            "(image_pull_secrets in config/daemon.toml)"
        )
    if seconds < IMAGE_ERROR_SECONDS:
        return None
    return GangFailure(cause="infrastructure", message=f"the image cannot be pulled: {waiting.message}")


def may_pass(waiting: Word) -> bool:
    """Whether a wait counts as a failure only after some time."""
    return waiting.reason == _CONFIG_ERROR or waiting.reason in _PULL_ERRORS


def lost_words(pod: SeenPod) -> str:
    """Return why a pod was lost, for people."""
    where = f" on {pod.node}" if pod.node else ""
    for word in (pod.status, pod.disrupted):
        if word is not None and str(word):
            return f"pod {pod.name}{where}: {word}"
    if pod.ended is not None:
        reason, code, message = pod.ended
        text = f"pod {pod.name}{where} ended with code {code} ({reason})"
        return f"{text}: {message}" if message else text
    return f"pod {pod.name}{where} is being deleted" if pod.deleting else f"pod {pod.name}{where} failed"


def some(names: Sequence[str]) -> str:
    """Return the names, or the first of many."""
    return ", ".join(names) if len(names) <= _NAMED else f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"


def _eaten(host: int, message: str) -> GangFailure:
    return GangFailure(cause="failed", message=message, host=host, exit_code=OUT_OF_MEMORY_EXIT)


def _refused(message: str) -> GangFailure:
    return GangFailure(cause="refused", message=message)
