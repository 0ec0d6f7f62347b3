"""What `bastion kubernetes manifest` prints: as reviewed, known to the official client, and read by the settings."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from google.auth.identity_pool import Credentials

from bastion.client import cluster_manifest, yaml_writer
from bastion.client.cluster_manifest import Installation
from bastion.core.errors import Refused
from bastion.core.model import daemon_settings
from tests.golden.kubernetes import golden_files
from tests.support.kubernetes_schemas import object_problems

yaml = pytest.importorskip("yaml", reason="comes with the official client: pip install 'bastion[kubernetes]'")

PROVIDER = "projects/123456789/locations/global/workloadIdentityPools/team-pool/providers/team-cluster"
PLAIN = Installation(
    name="team-bastion",
    namespace="bastion",
    image="registry.example/bastion:v1",
    root="gs://my-bucket/team-bastion",
    provider="gke",
)
EVERYTHING = Installation(
    name="west",
    namespace="training",
    image="registry.example/bastion@sha256:" + "0" * 64,
    root="gs://my-bucket/west-bastion",
    quota_root="gs://my-private-bucket/west-bastion",
    service_account="west-worker",
    provider="eks",
    daemon_identity="arn:aws:iam::123456789012:role/bastion-daemon",
    worker_identity="arn:aws:iam::123456789012:role/bastion-worker",
    workload_identity_provider=PROVIDER,
    queue="bastion-{project}",
)
BOTH = pytest.mark.parametrize("wanted", [PLAIN, EVERYTHING], ids=["plain", "everything"])


def of_kind(wanted: Installation, kind: str) -> list[dict[str, Any]]:
    return [each for each in cluster_manifest.objects(wanted) if each["kind"] == kind]


@pytest.mark.parametrize(("name", "wanted"), [("plain", PLAIN), ("everything", EVERYTHING)])
def test_the_objects_are_those_that_were_reviewed(name: str, wanted: Installation) -> None:
    golden_files.check(f"installation-{name}.yaml", yaml_writer.documents(cluster_manifest.objects(wanted)))


@BOTH
def test_the_official_client_knows_every_field(wanted: Installation) -> None:
    assert [problem for each in cluster_manifest.objects(wanted) for problem in object_problems(each)] == []


@BOTH
def test_the_yaml_says_what_the_objects_say(wanted: Installation) -> None:
    found = cluster_manifest.objects(wanted)
    assert list(yaml.safe_load_all(yaml_writer.documents(found))) == found


@BOTH
def test_the_settings_that_it_asks_for_are_valid_with_the_uid_filled_in(wanted: Installation) -> None:
    table = cluster_manifest.settings(wanted).replace('"..."', '"5f0c5f0c-0000-4000-8000-000000000000"')
    found = daemon_settings.load(f'{table}\n[defaults]\nzones = ["k8s:here"]\n[[tiers]]\nmodel = "spot"\n'.encode())
    (cluster,) = found.clusters.values()
    assert (cluster.server, cluster.kubeconfig) == ("", "")
    assert cluster.namespace == wanted.namespace
    assert cluster.service_account == wanted.service_account
    assert cluster.workload_identity_provider == wanted.workload_identity_provider


@BOTH
def test_the_pods_account_gets_no_permission_and_no_token(wanted: Installation) -> None:
    bindings = of_kind(wanted, "RoleBinding") + of_kind(wanted, "ClusterRoleBinding")
    assert {subject["name"] for each in bindings for subject in each["subjects"]} == {wanted.name}
    (worker,) = (each for each in of_kind(wanted, "ServiceAccount") if each["metadata"]["name"] != wanted.name)
    assert worker["automountServiceAccountToken"] is False


def test_the_google_credentials_are_accepted_by_googles_library_and_name_the_volumes_files() -> None:
    (deployment,) = of_kind(EVERYTHING, "Deployment")
    template = deployment["spec"]["template"]
    (document,) = template["metadata"]["annotations"].values()
    Credentials.from_info(json.loads(document))
    (container,) = template["spec"]["containers"]
    (mount,) = (each["mountPath"] for each in container["volumeMounts"] if each["name"] == "google-identity")
    (volume,) = (each["projected"] for each in template["spec"]["volumes"] if each["name"] == "google-identity")
    token, file = (next(iter(source.values())) for source in volume["sources"])
    assert json.loads(document)["credential_source"]["file"] == f"{mount}/{token['path']}"
    variable = {"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": f"{mount}/{file['items'][0]['path']}"}
    assert variable in container["env"]
    assert token["audience"] == "https:" + json.loads(document)["audience"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"namespace": "My_Space"}, "--namespace='My_Space' is not a valid Kubernetes name"),
        ({"name": "x" * 64}, "is not a valid Kubernetes name"),
        ({"service_account": "a.b"}, "--service_account='a.b' is not"),
        ({"service_account": "team-bastion"}, "users' commands run as the second, so give it another name"),
        ({"root": "/srv/team-bastion"}, "use --root=gs://BUCKET/NAME-bastion"),
        ({"provider": "generic", "worker_identity": "x"}, "require --provider=gke or --provider=eks"),
        ({"queue": "Team_{project}"}, "--queue='Team_{project}' is not a LocalQueue's name"),
        ({"workload_identity_provider": "pool"}, "projects/NUMBER/locations/global/workloadIdentityPools/"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_before(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as refusal:
        cluster_manifest.objects(dataclasses.replace(PLAIN, **changes))
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "yes",
        "No",
        "null",
        "on",
        "1",
        "1.5",
        "0x10",
        "-",
        "- a",
        "a: b",
        "a #b",
        "{}",
        "*x",
        "&x",
        "!x",
        "a\nb",
        "é",
        "y",
    ],
)
def test_yaml_keeps_text_that_looks_like_something_else(value: str) -> None:
    documents = [
        {"key": value, value or "x": [value, {"a": [value], "b": {}, "c": []}, [[value]]], "n": [1, None, True]}
    ]
    assert list(yaml.safe_load_all(yaml_writer.documents(documents))) == documents
