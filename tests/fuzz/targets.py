"""Every parser of what comes from outside; docs/development/fuzzing.md has the table of inputs."""

from __future__ import annotations

from tests.fuzz import (
    agent_targets,
    client_targets,
    cloud_targets,
    cluster_targets,
    documents_targets,
    proof_targets,
    wire_targets,
)
from tests.fuzz.target import Target

TARGETS: tuple[Target, ...] = (
    *documents_targets.TARGETS,
    *proof_targets.TARGETS,
    *agent_targets.TARGETS,
    *wire_targets.TARGETS,
    *cluster_targets.TARGETS,
    *cloud_targets.TARGETS,
    *client_targets.TARGETS,
)
BY_NAME = {target.name: target for target in TARGETS}
