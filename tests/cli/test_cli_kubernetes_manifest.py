"""`bastion kubernetes manifest`: objects on stdout, what to do with the settings on stderr."""

from __future__ import annotations

import json

import pytest

from bastion.cli.main import main
from bastion.client import cluster_manifest, yaml_writer
from bastion.client.cluster_manifest import Installation

ROOT = "--root=gs://my-bucket/team-bastion"
IMAGE = "--image=registry.example/bastion:v1"
DEFAULT = Installation(
    name="team-bastion",
    namespace="bastion",
    image="registry.example/bastion:v1",
    root="gs://my-bucket/team-bastion",
    provider="gke",
)


def test_stdout_has_the_objects_and_stderr_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubernetes", "manifest", ROOT, IMAGE]) == 0
    shown = capsys.readouterr()
    assert shown.out == yaml_writer.documents(cluster_manifest.objects(DEFAULT))
    assert shown.err.startswith("add to config/daemon.toml:\n\n[clusters.here]\n")


def test_json_is_one_list_that_kubectl_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubernetes", "manifest", ROOT, IMAGE, "--output=json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"apiVersion": "v1", "kind": "List", "items": cluster_manifest.objects(DEFAULT)}


def test_each_flag_finds_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--name=west",
        "--namespace=training",
        "--service_account=west-worker",
        "--quota_root=gs://private/team-bastion",
        "--daemon_identity=daemon@p.iam.gserviceaccount.com",
        "--worker_identity=worker@p.iam.gserviceaccount.com",
        "--output=json",
    ]
    assert main(["kubernetes", "manifest", ROOT, IMAGE, *flags]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    assert {each["metadata"].get("namespace") for each in items} == {"training", None}
    accounts = {
        each["metadata"]["name"]: each["metadata"]["annotations"]["iam.gke.io/gcp-service-account"]
        for each in items
        if each["kind"] == "ServiceAccount"
    }
    assert accounts == {
        "west": "daemon@p.iam.gserviceaccount.com",
        "west-worker": "worker@p.iam.gserviceaccount.com",
    }
    (container,) = items[-1]["spec"]["template"]["spec"]["containers"]
    assert container["args"] == [
        "--root=gs://my-bucket/team-bastion",
        "--slices=cloud",
        "--quota_root=gs://private/team-bastion",
    ]


def test_the_daemons_command_line_is_one_that_the_program_takes() -> None:
    from bastion.cli import parsing

    (container,) = cluster_manifest.objects(DEFAULT)[-1]["spec"]["template"]["spec"]["containers"]
    words = [*container["command"], *container["args"]]
    assert words[:3] == ["tini", "--", "bastion"]
    entry, count = parsing.find(words[3:])
    parsing.parse(entry.name, entry.load(), words[3 + count :])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([ROOT], "requires --image=IMAGE"),
        (["--root=/srv/team-bastion", IMAGE], "use --root=gs://BUCKET/NAME-bastion"),
        ([ROOT, IMAGE, "--namespace=No"], "--namespace='No' is not a valid Kubernetes name"),
        ([ROOT, IMAGE, "--namespace=kube-system"], "give the bastion a namespace of its own"),
        ([ROOT, "--image=my image"], "--image=my image is not valid: it must be a container image such as"),
        ([ROOT, IMAGE, "--provider=aks"], "provider"),
        ([ROOT, IMAGE, "--daemon_identity=ann"], "use one such as daemon@my-project.iam.gserviceaccount.com"),
        ([ROOT, IMAGE, "--provider=eks", "--worker_identity=a@b.c"], "use one such as arn:aws:iam::"),
        ([ROOT, IMAGE, "--quota_root=gs://x"], "use gs://BUCKET/NAME-bastion"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["kubernetes", "manifest", *arguments]) == 64
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err


def test_a_bastions_name_that_kubernetes_would_not_take_is_made_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubernetes", "manifest", "--root=gs://my-bucket/My_Team.x-bastion", IMAGE, "--output=json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"][-1]["metadata"]["name"] == "my-team-x-bastion"
