"""The Events of a pod's life."""

from __future__ import annotations

from typing import Any

from bastion.emulators.kubernetes.kubelet.pod_events import events

Obj = dict[str, Any]


def status(state: Obj, **fields: Any) -> Obj:
    return {"containerStatuses": [{"name": "host", "image": "python", "state": state}], **fields}


def told(before: Obj, after: Obj) -> list[tuple[str, str, bool]]:
    return [tuple(event) for event in events({"status": before}, after)]


CREATING = status({"waiting": {"reason": "ContainerCreating"}})
RUNNING = status({"running": {}})


def ended(**fields: Any) -> Obj:
    return status({"terminated": {"containerID": "containerd://1", "reason": "Completed", **fields}})


def test_a_container_that_starts_is_told_once() -> None:
    started = [
        ("Pulled", 'Container image "python" already present on machine', False),
        ("Created", "Created container: host", False),
        ("Started", "Started container host", False),
    ]
    assert told(CREATING, RUNNING) == started
    assert told(CREATING, ended()) == started
    assert told(RUNNING, ended()) == []
    assert told({}, CREATING) == []


def test_a_command_that_cannot_start() -> None:
    found = told(CREATING, ended(reason="StartError", message="no such file"))
    assert found[-1] == ("Failed", "Error: no such file", True)
    assert "Started" not in [reason for reason, _, _ in found]


def test_pulls_that_fail() -> None:
    failed = status({"waiting": {"reason": "ErrImagePull", "message": "not found"}})
    backoff = status({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}})
    assert told(CREATING, failed) == [
        ("Pulling", 'Pulling image "python"', False),
        ("Failed", 'Failed to pull image "python": not found', True),
        ("Failed", "Error: ErrImagePull", True),
    ]
    assert told(failed, failed) == []
    assert told(failed, backoff) == [
        ("BackOff", 'Back-off pulling image "python"', False),
        ("Failed", "Error: ImagePullBackOff", True),
    ]


def test_a_pod_that_the_kubelet_ends_or_refuses() -> None:
    evicted = status({"running": {}}, reason="Evicted", message="memory")
    assert told(RUNNING, evicted) == [("Evicted", "memory", True)]
    assert told(evicted, evicted) == []
