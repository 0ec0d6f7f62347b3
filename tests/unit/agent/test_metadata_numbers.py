"""Numbers that the platform says of a host."""

from __future__ import annotations

import pytest

from bastion.agent.identity import parse_slice_index
from bastion.agent.metadata_server import MetadataServer, read_identity
from bastion.core.bucket.protocol import AgentArguments
from bastion.core.errors import InvalidDocument


class Answers(MetadataServer):
    """A metadata server with these attributes."""

    def __init__(self, **attributes: str) -> None:
        super().__init__("nowhere")
        self._attributes = {name.replace("_", "-"): text for name, text in attributes.items()}

    def attribute(self, name: str) -> str:
        return self._attributes[name]


@pytest.mark.parametrize("number", ["9" * 5000, "\u0663", "-1", ""])
def test_a_number_that_no_host_has_is_asked_for_again(number: str) -> None:
    arguments = AgentArguments(root="gs://b/x-bastion", bastion="x-bastion", job="j", run="a-1", run_key="0" * 64)
    answers = Answers(
        bastion_agent=arguments.to_bytes().decode(), agent_worker_number=number, worker_network_endpoints="10.0.0.1"
    )
    with pytest.raises(InvalidDocument, match="agent-worker-number"):
        read_identity(answers)
    with pytest.raises(InvalidDocument, match="MEGASCALE_SLICE_ID"):
        parse_slice_index(f"MEGASCALE_SLICE_ID: '{number}'\nNODE_ID: 'b-x'\n")
