"""The init container's program: a pod gets its agent, whole, or a reason."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bastion.core.bucket import keys
from bastion.core.bucket.protocol import AgentArguments
from bastion.core.errors import AccessDenied
from bastion.wiring import bring_agent
from bastion.wiring.roots import open_root

RUN = "abcdefghij-1"
ARCHIVE = b"a tar file" * 1000
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()


class Pod:
    """A folder as bucket, and an emptyDir."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        (folder / "bucket").mkdir()
        (folder / "volume").mkdir()
        self.root = f"{folder}/bucket/team-bastion"
        self.file = folder / "volume" / "agent.tar"
        self.log = folder / "termination-log"
        self.waits: list[float] = []
        fields = {
            "root": self.root,
            "bastion": "team-bastion",
            "job": "job",
            "run": "abcdefghij-1",
            "run_key": "ab" * 32,
        }
        arguments = AgentArguments(**{**fields, "agent": SHA256, **changes})
        self.environ = {"BASTION_AGENT": arguments.to_bytes().decode(), "BASTION_TERMINATION_LOG": str(self.log)}

    def store(self, data: bytes) -> None:
        open_root(self.root).put(keys.agent_file(SHA256), data, generation=0)

    def bring(self) -> int:
        return bring_agent.bring(self.environ, self.file, sleep=self.slept, rng=Random(1))

    def slept(self, seconds: float) -> None:
        self.waits.append(seconds)
        assert len(self.waits) < 10, "tried again for nothing"


def test_the_agent_is_copied_for_every_user_and_nothing_else_is_left(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    pod.store(ARCHIVE)
    assert pod.bring() == 0
    assert pod.file.read_bytes() == ARCHIVE
    assert pod.file.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in pod.file.parent.iterdir()] == ["agent.tar"]


def test_a_file_with_another_digest_is_refused_with_the_key_and_no_file_is_left(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    pod.store(b"something else")
    assert pod.bring() == 64
    assert f"agents/{SHA256}/agent.tar has a wrong SHA-256: expected {SHA256}, got " in pod.log.read_text()
    assert list(pod.file.parent.iterdir()) == []


def test_an_agent_that_is_not_there_yet_and_a_bucket_that_denies_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = Pod(tmp_path)
    opened = bring_agent.open_root
    monkeypatch.setattr(bring_agent, "open_root", lambda _url: _raise(AccessDenied("not yet")))

    def slept(seconds: float) -> None:
        pod.slept(seconds)
        monkeypatch.setattr(bring_agent, "open_root", opened)
        if len(pod.waits) == 2:
            pod.store(ARCHIVE)

    assert bring_agent.bring(pod.environ, pod.file, sleep=slept, rng=Random(1)) == 0
    assert len(pod.waits) == 2
    assert pod.file.read_bytes() == ARCHIVE


def test_a_volume_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    pod = Pod(tmp_path)
    pod.store(ARCHIVE)
    pod.file.mkdir()

    def slept(seconds: float) -> None:
        pod.slept(seconds)
        pod.file.rmdir()

    assert bring_agent.bring(pod.environ, pod.file, sleep=slept, rng=Random(1)) == 0
    assert [path.name for path in pod.file.parent.iterdir()] == ["agent.tar"]


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"BASTION_AGENT": ""}, "the pod has no BASTION_AGENT; the manifest must set it"),
        ({"BASTION_AGENT": "{"}, "BASTION_AGENT: "),
    ],
)
def test_a_pod_without_arguments_ends_with_64_and_says_so(tmp_path: Path, environ: dict[str, str], said: str) -> None:
    pod = Pod(tmp_path)
    pod.environ |= environ
    assert pod.bring() == 64
    assert pod.log.read_text().startswith(f"the agent cannot be brought: {said}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"agent": ""}, "names no agent"),
        ({"root": "az://bucket/team-bastion"}, "is not a folder, a gs:// URL or an s3:// URL"),
    ],
)
def test_arguments_that_lead_nowhere_end_with_64(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    pod = Pod(tmp_path, **changes)
    assert pod.bring() == 64
    assert said in pod.log.read_text()


def test_without_a_file_the_usage_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert bring_agent.main([]) == 64
    assert "usage: python -m bastion.wiring.bring_agent FILE" in capsys.readouterr().err


def _raise(error: Exception) -> Any:
    raise error
