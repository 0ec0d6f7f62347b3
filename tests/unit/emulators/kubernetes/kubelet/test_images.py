"""References to images, their faults, and the kubelet's back-off."""

from __future__ import annotations

from typing import Any

import pytest

from bastion.emulators.kubernetes.kubelet.images import InvalidReference, parse
from bastion.emulators.kubernetes.kubelet.pulls import Pulls


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.12", "docker.io/library/python:3.12"),
        ("team/trainer", "docker.io/team/trainer:latest"),
        ("localhost/x:1", "localhost/x:1"),
        ("localhost:5000/x", "localhost:5000/x:latest"),
        ("us-docker.pkg.dev/project/repo/trainer:v1", "us-docker.pkg.dev/project/repo/trainer:v1"),
        ("x@sha256:" + "a" * 64, "docker.io/library/x@sha256:" + "a" * 64),
        ("x:1@sha256:" + "a" * 64, "docker.io/library/x:1@sha256:" + "a" * 64),
    ],
)
def test_a_name_is_completed_as_containerd_does_it(name: str, full: str) -> None:
    assert parse(name).full_name == full


@pytest.mark.parametrize("name", ["", "Team/Trainer", "x:", "x@", "x@sha256:12", "a b", "x:y/z", "a//b", "-x", "x/"])
def test_what_is_not_a_reference(name: str) -> None:
    with pytest.raises(InvalidReference, match="invalid reference format"):
        parse(name)


def test_a_fault_is_a_folder_of_the_path_with_or_without_a_registry() -> None:
    assert parse("missing/x").pull_error
    assert parse("gcr.io/project/missing/x:1").pull_error
    assert "pull access denied" in parse("private/x").pull_error
    assert not parse("missing").pull_error
    assert not parse("missing.example/x").pull_error
    assert not parse("bare/x").has_programs
    assert not parse("nopython/x").has_python
    assert parse("python").has_programs
    assert parse("python").has_python


def test_the_back_off_doubles_up_to_five_minutes() -> None:
    pulls = Pulls(10.0)
    pod: dict[str, Any] = {"spec": {"containers": [{"name": "host", "image": "missing/x"}]}}

    reasons = {now: pulls.waiting(pod, float(now))["host"][0] for now in range(2000)}
    tries = [
        now for now in range(1, 2000) if (reasons[now - 1], reasons[now])[:2] == ("ImagePullBackOff", "ErrImagePull")
    ]
    assert [second - first for first, second in zip([0, *tries], tries, strict=False)][:7] == [
        20,
        30,
        50,
        90,
        170,
        310,
        310,
    ]
    assert reasons[0] == reasons[9] == "ErrImagePull"
    assert reasons[10] == "ImagePullBackOff"


def test_the_first_container_without_its_image_waits() -> None:
    containers = [{"name": "a", "image": "python"}, {"name": "b", "image": "missing/x"}]
    pod = {"spec": {"initContainers": containers[:1], "containers": containers[1:]}}
    assert list(Pulls(1.0).waiting(pod, 0.0)) == ["b"]
    assert Pulls(1.0).waiting({"spec": {"containers": containers[:1]}}, 0.0) == {}
