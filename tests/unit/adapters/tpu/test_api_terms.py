"""The Cloud TPU API's words in the port's words."""

from __future__ import annotations

import re

import pytest
from google.cloud import tpu_v2

from bastion.adapters.tpu.api_terms import creation_failure, label_value, slice_state, status_message, user_labels
from bastion.core.errors import GangExists, ProvisionerError, ProvisionerRefused, Stockout
from bastion.core.model.gangs import GangState


@pytest.mark.parametrize("state", [state for state in tpu_v2.Node.State if state.value])
def test_every_state_of_the_api_has_a_meaning(state: tpu_v2.Node.State) -> None:
    plain = {"CREATING": GangState.CREATING, "READY": GangState.READY, "DELETING": GangState.DELETING}
    assert slice_state(state) is plain.get(state.name, GangState.LOST)


def test_a_state_of_a_later_version_of_the_api_harms_no_job() -> None:
    assert slice_state(0) is GangState.CREATING
    assert slice_state(99) is GangState.CREATING


def test_a_lost_node_says_what_is_wrong_with_it() -> None:
    node = tpu_v2.Node(
        state=tpu_v2.Node.State.PREEMPTED,
        health_description="taken",
        symptoms=[tpu_v2.Symptom(symptom_type=tpu_v2.Symptom.SymptomType.OUT_OF_MEMORY, worker_id="3", details="dead")],
    )
    assert status_message(node) == "the node is PREEMPTED; taken; out of memory on worker 3: dead"
    assert status_message(tpu_v2.Node(state=tpu_v2.Node.State.READY)) == ""


@pytest.mark.filterwarnings("ignore:Unrecognized")
def test_a_symptom_of_a_later_version_of_the_api_is_told_by_its_number() -> None:
    node = tpu_v2.Node(state=tpu_v2.Node.State.READY, symptoms=[tpu_v2.Symptom(worker_id="3", details="dead")])
    tpu_v2.Node.pb(node).symptoms[0].symptom_type = 99
    assert status_message(node) == "symptom 99 on worker 3: dead"


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (8, 'There is no more capacity in the zone "us-central2-b"', Stockout),
        (8, "Quota limit 'X' has been exceeded. Limit: 16 in region us-east1.", Stockout),
        (8, "Quota limit 'X' has been exceeded. Limit: 0 in region us-east1.", ProvisionerRefused),
        (8, "Quota limit 'X' has been exceeded. Limit: 0.", ProvisionerRefused),
        (13, "an internal error has occurred", Stockout),
        (4, "the 'valid until' constraint expired", Stockout),
        (9, "the request has expired", Stockout),
        (9, "Insufficient reserved capacity", Stockout),
        (9, "the network is gone", ProvisionerRefused),
        (3, "reservation for request queue x", ProvisionerRefused),
        (3, "update is not supported while in state PREEMPTED", ProvisionerError),
        (7, "Permission 'tpu.nodes.create' denied", ProvisionerRefused),
        (6, "already exists", GangExists),
        (1, "cancelled", ProvisionerError),
        (99, "what is this", ProvisionerError),
    ],
)
def test_a_failed_creation_is_sorted_by_code_and_words_and_keeps_both(
    code: int, message: str, kind: type[Exception]
) -> None:
    failure = creation_failure(code, message)
    assert type(failure) is kind
    assert message in str(failure)
    assert f"(code {code})" in str(failure)


@pytest.mark.parametrize("name", ["team-bastion", "a", "abcdefghij-1", "0_x"])
def test_what_may_be_a_label_is_its_own_label(name: str) -> None:
    assert label_value(name) == name


def test_whatever_else_becomes_a_label_that_no_other_name_gets() -> None:
    names = ["Team-bastion", "team.bastion", "team bastion", "x" * 64, "x" * 65, "-", "_a", "", "Ünï-bastion"]
    labels = [label_value(name) for name in names]
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,62}", label) for label in labels)
    assert len(set(labels)) == len(names)
    assert not set(labels) & {"team-bastion"}


@pytest.mark.parametrize(
    ("code", "message", "todo"),
    [
        (8, "Quota limit 'X' has been exceeded. Limit: 0 in region us-east1.", "ask for that quota"),
        (3, "reservation for request queue x", "tpus reservations list"),
        (3, 'CloudTpu received an invalid AcceleratorType "v3-8" for zone a', "accelerator-types list"),
        (7, "Permission 'tpu.nodes.create' denied", "roles/tpu.admin"),
        (9, "the network is gone", "networks list"),
        (3, "the runtime version x is not known", "versions list"),
        (3, "something else", "correct config/daemon.toml"),
    ],
)
def test_a_creation_that_is_refused_for_good_says_what_to_do(code: int, message: str, todo: str) -> None:
    assert todo in str(creation_failure(code, message))


def test_the_users_labels_are_put_on_nodes_where_google_cloud_takes_them() -> None:
    taken = {"team": "red", "a-b_c": "0-x_", "empty": "", "k" * 63: "v" * 63}
    left_out = {"Team": "red", "team2": "Red", "app.kubernetes": "x", "version": "1.2", "0team": "x", "goog-x": "y"}
    assert user_labels(taken | left_out) == taken
