"""With `agent_image`, an init container brings the agent from the bucket before the user's image starts."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.adapters.kubernetes.provisioner import KubernetesProvisioner
from bastion.adapters.system_clock import SystemClock
from bastion.core.bucket import keys
from bastion.core.bucket.protocol import AgentArguments
from bastion.core.model.gangs import GangRef, GangRequest, GangState, GangStatus
from bastion.wiring.roots import open_root
from tests.support.emulated_cluster import EmulatedCluster, emulated_cluster
from tests.support.waiting import until

ARCHIVE = b"not a tar file"
SHA256 = hashlib.sha256(ARCHIVE).hexdigest()
# Shows the file to whoever looks at the pod.
SCRIPT = 'cat "$BASTION_AGENT_FILE" > "$BASTION_TERMINATION_LOG"; exit 1'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedCluster]:
    with emulated_cluster(tmp_path_factory.mktemp("cluster"), "v4-8=2") as made:
        yield made


@pytest.fixture(scope="module")
def provisioner(cluster: EmulatedCluster) -> Iterator[KubernetesProvisioner]:
    settings = dataclasses.replace(cluster.settings, agent_image="registry.example/bastion:v1")
    made = KubernetesProvisioner(settings, bastion="team-bastion", startup_script=SCRIPT, clock=SystemClock())
    yield made
    made.close()


def ended(provisioner: KubernetesProvisioner, root: str, run: str) -> GangStatus:
    arguments = AgentArguments(
        root=root, bastion="team-bastion", job="job", run=run, run_key="ab" * 32, accelerator_type="v4-8", agent=SHA256
    )
    request = GangRequest(
        ref=GangRef(name=f"b-{run}"),
        bastion="team-bastion",
        run=run,
        token="token",
        accelerator_type="v4-8",
        image="registry.example/train:v1",
        agent_arguments=arguments.to_bytes().decode(),
    )
    provisioner.create(request)
    seen: list[GangStatus | None] = []

    def over() -> bool:
        seen.append(provisioner.get(request.ref))
        return seen[-1] is not None and seen[-1].state in (GangState.LOST, GangState.FAILED)

    until(over)
    provisioner.delete(request.ref)
    assert seen[-1] is not None
    return seen[-1]


def test_the_users_container_finds_the_agent_of_the_bucket(provisioner: KubernetesProvisioner, tmp_path: Path) -> None:
    root = str(tmp_path / "team-bastion")
    open_root(root).put(keys.agent_file(SHA256), ARCHIVE, generation=0)
    found = ended(provisioner, root, "aaaaaaaaaa-1")
    assert found.state is GangState.LOST
    assert "not a tar file" in found.message


def test_an_agent_that_was_changed_in_the_bucket_is_refused_before_the_users_image_starts(
    provisioner: KubernetesProvisioner, tmp_path: Path
) -> None:
    root = str(tmp_path / "team-bastion")
    open_root(root).put(keys.agent_file(SHA256), b"something else", generation=0)
    found = ended(provisioner, root, "bbbbbbbbbb-1")
    assert found.state is GangState.FAILED
    assert found.failure is not None
    assert found.failure.cause == "refused"
    words = f"the agent cannot be brought: agents/{SHA256}/agent.tar has a wrong SHA-256: "
    assert found.failure.message.startswith(words)
    assert "--image" not in found.failure.message
