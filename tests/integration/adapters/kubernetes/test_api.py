"""The client against an emulated API server: every method, and what goes wrong on the way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.core.errors import (
    CredentialsRefused,
    GangExists,
    MissingPermission,
    ProvisionerRefused,
    ProvisionerUnavailable,
)
from bastion.emulators.kubernetes.apiserver.faults import Fault
from tests.support.cluster_api import JOBSETS, PODS, SELECTOR, Cluster, pod, running
from tests.support.scripted_server import nobody

pytest.importorskip("kubernetes.config", reason="the extra `kubernetes` is not installed")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path) as found:
        yield found


def test_an_object_is_created_read_labeled_and_deleted(cluster: Cluster) -> None:
    api = cluster.api()
    made = api.create(PODS, pod("a"))
    assert api.get(f"{PODS}/a") == made
    labeled = api.patch_labels(f"{PODS}/a", {"new": "1", "bastion-run": None})
    assert labeled is not None
    assert labeled["metadata"]["labels"] == {"bastion-managed": "team", "new": "1"}
    assert api.delete(f"{PODS}/a", propagation="Background")
    assert api.get(f"{PODS}/b") is None


def test_what_does_not_exist_is_none_or_false(cluster: Cluster) -> None:
    api = cluster.api()
    assert api.get(f"{JOBSETS}/b-x-1") is None
    assert not api.delete(f"{JOBSETS}/b-x-1")
    assert api.patch_labels(f"{JOBSETS}/b-x-1", {"a": "b"}) is None


def test_a_name_that_is_taken_is_not_adopted(cluster: Cluster) -> None:
    api = cluster.api()
    api.create(PODS, pod("a"))
    with pytest.raises(GangExists, match=r"pods/a in namespace default of cluster west.*already exists"):
        api.create(PODS, pod("a"))


def test_only_the_object_with_the_uid_is_deleted(cluster: Cluster) -> None:
    api = cluster.api()
    uid = api.create(PODS, pod("a"))["metadata"]["uid"]
    assert not api.delete(f"{PODS}/a", uid="another")
    found = api.get(f"{PODS}/a")
    assert found is not None
    assert "deletionTimestamp" not in found["metadata"]
    assert api.delete(f"{PODS}/a", uid=uid)


def test_a_creation_asks_the_server_to_refuse_unknown_fields(cluster: Cluster) -> None:
    cluster.api().create(PODS, pod("a"))
    assert cluster.requests == [f"POST {PODS}?fieldValidation=Strict"]


def test_an_object_that_breaks_a_rule_is_refused_with_the_servers_words(cluster: Cluster) -> None:
    with pytest.raises(ProvisionerRefused, match="Not_A_Name"):
        cluster.api().create(PODS, pod("Not_A_Name"))


def test_a_list_has_all_pages_and_only_what_the_selector_names(cluster: Cluster) -> None:
    api = cluster.api()
    for number in range(7):
        api.create(PODS, pod(f"p{number}", managed="team" if number != 3 else "other"))
    listing = api.list(PODS, label_selector=SELECTOR, limit=2)
    assert [item["metadata"]["name"] for item in listing.items] == ["p0", "p1", "p2", "p4", "p5", "p6"]
    assert len(cluster.lists()) == 3
    assert int(listing.resource_version) > 0


def test_a_list_whose_page_expires_begins_again_and_at_last_reads_all_at_once(cluster: Cluster) -> None:
    api = cluster.api()
    for number in range(4):
        api.create(PODS, pod(f"p{number}"))
    cluster.faults = [("continue=", Fault(too_old=True)), ("continue=", Fault(too_old=True))]
    assert [item["metadata"]["name"] for item in api.list(PODS, limit=2).items] == ["p0", "p1", "p2", "p3"]
    assert ["limit=2" in request for request in cluster.lists()] == [True, True, True, True, False]


@pytest.mark.parametrize("code", [429, 500, 503, 504])
def test_an_overloaded_server_is_not_a_refusal(cluster: Cluster, code: int) -> None:
    cluster.faults = [("POST", Fault(refuse=code))]
    with pytest.raises(ProvisionerUnavailable, match=f"answered {code}"):
        cluster.api().create(PODS, pod("a"))
    assert len(cluster.requests) == 1


def test_a_creation_whose_reply_is_lost_is_not_repeated(cluster: Cluster) -> None:
    api = cluster.api()
    cluster.faults = [("POST", Fault(cut_reply=True))]
    with pytest.raises(ProvisionerUnavailable):
        api.create(PODS, pod("a"))
    assert len(cluster.requests) == 1
    with pytest.raises(GangExists):
        api.create(PODS, pod("a"))


def test_a_read_whose_reply_is_lost_is_repeated_once(cluster: Cluster) -> None:
    api = cluster.api()
    cluster.faults = [("GET", Fault(cut_reply=True))]
    assert api.list(PODS).items == []
    assert len(cluster.requests) == 2
    cluster.faults = [("GET", Fault(cut_reply=True))] * 2
    with pytest.raises(ProvisionerUnavailable, match="cannot list pods"):
        api.list(PODS)


def test_a_slow_answer_ends_with_the_limit(cluster: Cluster) -> None:
    cluster.faults = [("GET", Fault(delay_seconds=0.5))]
    with pytest.raises(ProvisionerUnavailable, match="did not answer within"):
        cluster.api(request_seconds=0.2).get(f"{PODS}/a")


def test_a_forbidden_read_names_the_permission(cluster: Cluster) -> None:
    cluster.faults = [("GET", Fault(refuse=403))]
    with pytest.raises(MissingPermission) as raised:
        cluster.api().list(PODS)
    assert raised.value.permission == "list pods in namespace default"


def test_a_token_that_expired_is_said_and_its_successor_used(cluster: Cluster) -> None:
    api = cluster.api()
    token = Path(cluster.settings().token_file)
    good = token.read_text()
    token.write_text("expired")
    with pytest.raises(CredentialsRefused, match="renew the token"):
        api.list(PODS)
    token.write_text(good)
    assert api.list(PODS).items == []


def test_the_kubeconfig_of_the_emulator_leads_to_it(cluster: Cluster) -> None:
    file = cluster.server.state_dir / "kubeconfig"
    api = cluster.api(server="", ca_file="", token_file="", kubeconfig=str(file))
    assert api.list(PODS).items == []


def test_a_certificate_of_an_unknown_authority_is_refused_with_the_remedy(cluster: Cluster) -> None:
    with pytest.raises(ProvisionerUnavailable, match=r"cannot be verified.*ca_file"):
        cluster.api(ca_file="").list(PODS)
    assert cluster.requests == []


def test_nobody_at_the_address_is_said(cluster: Cluster) -> None:
    with nobody() as port, pytest.raises(ProvisionerUnavailable, match=r"cannot be reached .*[Rr]efused"):
        cluster.api(server=f"https://127.0.0.1:{port}").list(PODS)


def test_a_name_that_does_not_resolve_is_said(cluster: Cluster) -> None:
    with pytest.raises(ProvisionerUnavailable, match=r"no-such-host\.invalid"):
        cluster.api(server="https://no-such-host.invalid").list(PODS)


def test_a_missing_namespace_is_an_operators_slip(cluster: Cluster) -> None:
    with pytest.raises(ProvisionerUnavailable, match="kubectl create namespace elsewhere"):
        cluster.api().create("/api/v1/namespaces/elsewhere/pods", pod("a"))


def test_a_watch_gives_events_and_ends_when_the_server_ends_it(cluster: Cluster) -> None:
    api = cluster.api()
    version = api.list(PODS).resource_version
    watch = api.watch(PODS, resource_version=version, label_selector=SELECTOR, timeout_seconds=1)
    api.create(PODS, pod("a"))
    api.create(PODS, pod("b", managed="other"))
    seen = [(event["type"], event["object"]["metadata"].get("name")) for event in watch]
    assert [event for event in seen if event[0] != "BOOKMARK"] == [("ADDED", "a")]


def test_an_idle_watch_gives_bookmarks(tmp_path: Path) -> None:
    with running(tmp_path, bookmark_seconds=0.1) as cluster:
        api = cluster.api()
        watch = api.watch(PODS, resource_version=api.list(PODS).resource_version, label_selector=SELECTOR)
        created = api.create(PODS, pod("b", managed="other"))
        version = created["metadata"]["resourceVersion"]
        assert any(
            event["type"] == "BOOKMARK" and event["object"]["metadata"]["resourceVersion"] == version for event in watch
        )
        watch.close()


def test_the_cluster_is_known_by_the_uid_of_its_first_namespace(cluster: Cluster) -> None:
    found = cluster.api().get("/api/v1/namespaces/kube-system")
    assert found is not None
    assert len(json.dumps(found["metadata"]["uid"])) == 38
