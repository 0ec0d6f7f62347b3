"""The rows of the table of slice states are those of the API, and the adapter sees them as the table says."""

from __future__ import annotations

import pytest
from google.cloud import tpu_v2

from bastion.adapters.tpu.api_terms import queued_state, slice_state
from bastion.core.reconcile.gang_table import NODE_STATES, QUEUED_STATES

NODE = tpu_v2.Node.State
QUEUED = tpu_v2.QueuedResourceState.State


@pytest.mark.parametrize("name", NODE_STATES)
def test_a_node_is_seen_as_the_table_says(name: str) -> None:
    assert slice_state(NODE[name]).value == NODE_STATES[name].value


@pytest.mark.parametrize("name", QUEUED_STATES)
def test_a_queued_resource_is_seen_as_the_table_says(name: str) -> None:
    assert queued_state(QUEUED[name]).value == QUEUED_STATES[name].value


def test_no_state_of_the_api_is_left_out() -> None:
    assert {state.name for state in NODE} - {"STATE_UNSPECIFIED"} == set(NODE_STATES)
    assert {state.name for state in QUEUED} - {"STATE_UNSPECIFIED"} == set(QUEUED_STATES)
