"""`bastion daemon check-config`: the settings in words, and what is missing with the command that finds it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bastion.core.bucket import keys

GOOD = """\
project = "my-project"
[types.v4]
zones = ["us-central2-b"]
service_account = "worker@my-project.iam"
external_ips = false
[[tiers]]
model = "reserved"
reservation = "r1"
[[tiers]]
model = "spot"
zones = { v4 = ["us-central2-b"] }
"""


IN_CLUSTERS = """\
[clusters.training]
provider = "gke"
server = "https://10.0.0.2"
uid = "5f0c1a2b-1111-2222-3333-444455556666"
namespace = "training"
service_account = "bastion-worker"
[clusters.spare]
kubeconfig = "/etc/kube"
context = "spare"
uid = "5f0c1a2b-1111-2222-3333-444455556667"
agent_image = "bastion:1"
workload_identity_provider = "projects/123456789/locations/global/workloadIdentityPools/team-pool/providers/team-lab"
[clusters.own]
uid = "5f0c1a2b-1111-2222-3333-444455556668"
[types.v5p]
zones = ["k8s:own"]
pod = { image = "train:v1" }
[types.v6e]
zones = ["k8s:training"]
[types.v6e.pod]
cpu = "100"
resources = { "hugepages-2Mi" = "4Gi" }
host_network = true
image_pull_secrets = ["one", "two"]
spot_grace_seconds = 20
[[types.v6e.pod.volumes]]
path = "/data"
claim = "datasets"
read_only = true
[[types.v6e.pod.volumes]]
path = "/lake"
bucket = "my-lake"
[[types.v6e.pod.volumes]]
path = "/keys"
secret = "wandb"
[[types.v6e.pod.volumes]]
path = "/cache"
host_path = "/mnt/ssd"
[[types.v6e.pod.tolerations]]
key = "team"
operator = "Equal"
value = "a"
effect = "NoSchedule"
[[types.v6e.pod.tolerations]]
key = "any"
[[tiers]]
model = "on-demand"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "daemon.toml"
    path.write_text(GOOD, "utf-8")
    return path


def test_a_good_file_is_shown_as_it_is_understood(run, file: Path) -> None:
    done = run("daemon", "check-config", str(file))
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "project my-project"
    assert lines[2].split()[:3] == ["v4", "us-central2-b", "worker@my-project.iam"]
    assert lines[3:5] == ["tier 0: reserved r1", "tier 1: spot in v4: us-central2-b"]
    assert "power off after 6 h" in lines[-1]


def test_the_meaning_is_had_as_json_too(run, file: Path) -> None:
    meaning = json.loads(run("daemon", "check-config", str(file), "--output=json").out)
    assert meaning["valid"] is True
    assert meaning["types"]["v4"]["zones"] == ["us-central2-b"]
    assert [tier["model"] for tier in meaning["tiers"]] == ["reserved", "spot"]
    assert meaning["warnings"] == []


def test_what_is_missing_is_named_with_the_command_that_finds_it_and_the_code_is_64(run, file: Path) -> None:
    file.write_text(GOOD.replace('service_account = "worker@my-project.iam"\n', ""), "utf-8")
    done = run("daemon", "check-config", str(file))
    assert (done.code, done.out) == (64, "")
    assert done.err == (
        f"bastion: {file}: line 2: types.v4.service_account is missing; find it with: "
        "gcloud iam service-accounts list --project=my-project\n"
    )
    told = json.loads(run("daemon", "check-config", str(file), "--output=json").out)
    assert told["valid"] is False
    assert told["problems"][0]["find"] == "gcloud iam service-accounts list --project=my-project"


def test_a_file_that_cannot_be_read_is_one_line_and_64(run, tmp_path: Path) -> None:
    done = run("daemon", "check-config", str(tmp_path / "none.toml"))
    assert (done.code, done.err.count("\n")) == (64, 1)
    assert "cannot read the operator settings" in done.err


def test_without_a_file_the_bastions_own_settings_are_checked_against_its_quota_file(run, bastion) -> None:
    bastion.write_settings(GOOD.encode())
    done = run("daemon", "check-config")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("project my-project\n")
    bastion.write_settings(GOOD.replace("types.v4", "types.v6e").replace("v4 =", "v6e =").encode())
    done = run("daemon", "check-config", code=0)
    assert "warning: the quota file has v4, but the operator settings name no zones for it; its jobs wait" in done.err


def test_a_bastion_without_settings_is_told_what_they_need(run, bastion) -> None:
    done = run("daemon", "check-config")
    assert (done.code, done.out) == (64, "")
    assert f"there is no {keys.DAEMON_SETTINGS} here" in done.err
    assert "project is missing; find it with: gcloud config get project" in done.err


def test_a_file_is_compared_with_the_quota_file_of_the_bastion_that_is_named(run, bastion, file: Path) -> None:
    quota = bastion.store.get(keys.PROJECT_QUOTAS).data.decode()
    tier = "[[total_resources]]\nv4 = 32\n"
    bastion.write_quota(quota.replace("[total_resources]\nv4 = 64\n", tier * 3).encode())
    done = run("daemon", "check-config", str(file), "--root=memory/test-bastion", code=0)
    assert "the quota file has 3 tiers and config/daemon.toml describes 2" in done.err
    assert run("daemon", "check-config", str(file)).err == ""


def test_clusters_and_what_is_set_of_their_pods_are_shown(run, file: Path) -> None:
    file.write_text(IN_CLUSTERS, "utf-8")
    done = run("daemon", "check-config", str(file), code=0)
    lines = done.out.splitlines()
    assert [line.split() for line in lines[1:3]] == [
        ["v5p", "k8s:own", "-", "-", "-", "-"],
        ["v6e", "k8s:training", "-", "-", "-", "-"],
    ]
    assert lines[3:8] == [
        "cluster training: gke, https://10.0.0.2, namespace training, uid 5f0c1a2b-1111-2222-3333-444455556666, "
        "pods as bastion-worker, agent from the bucket",
        "cluster spare: generic, kubeconfig /etc/kube with context spare, namespace default, "
        "uid 5f0c1a2b-1111-2222-3333-444455556667, pods as the default service account, agent from image bastion:1, "
        "Google identity by projects/123456789/locations/global/workloadIdentityPools/team-pool/providers/team-lab",
        "cluster own: generic, the cluster that the daemon runs in, namespace default, "
        "uid 5f0c1a2b-1111-2222-3333-444455556668, pods as the default service account, agent from the bucket",
        "pods of v5p: image train:v1",
        "pods of v6e: the job's own image, cpu 100, resources hugepages-2Mi=4Gi, tolerations team=a:NoSchedule any, "
        "volumes /data (claim datasets, read-only) /lake (bucket my-lake) /keys (secret wandb) "
        "/cache (host path /mnt/ssd), image pull secrets one two, "
        "host network yes, spot grace seconds 20",
    ]
    assert "warning: no zones name k8s:spare, so no job runs in cluster spare" in done.err
    assert "warning: v6e is in Kubernetes clusters only, and types.v6e.pod.image is not set; its jobs wait" in done.err
    assert done.err.count("warning") == 2


def test_clusters_and_pods_are_had_as_json_too(run, file: Path) -> None:
    file.write_text(IN_CLUSTERS, "utf-8")
    meaning = json.loads(run("daemon", "check-config", str(file), "--output=json", code=0).out)
    assert (meaning["clusters"]["spare"]["context"], meaning["clusters"]["training"]["provider"]) == ("spare", "gke")
    pod = meaning["types"]["v6e"]["pod"]
    assert (pod["cpu"], pod["resources"], pod["volumes"][1]["bucket"]) == ("100", {"hugepages-2Mi": "4Gi"}, "my-lake")
    file.write_text(GOOD, "utf-8")
    meaning = json.loads(run("daemon", "check-config", str(file), "--output=json", code=0).out)
    assert (meaning["clusters"], meaning["types"]["v4"]["pod"]) == ({}, None)


def test_a_type_that_is_in_a_cluster_on_one_tier_only_shows_its_pods(run, file: Path) -> None:
    cluster = '[clusters.own]\nuid = "5f0c1a2b-1111-2222-3333-444455556668"\n'
    in_cluster = '\n[[tiers]]\nmodel = "spot"\nzones = { v4 = ["k8s:own"] }\n'
    file.write_text(GOOD.replace("[types.v4]", cluster + "[types.v4]") + in_cluster, "utf-8")
    done = run("daemon", "check-config", str(file), code=0)
    assert "pods of v4: the job's own image\n" in done.out
    assert "tier 2: spot in v4: k8s:own\n" in done.out
    assert "us-central2-b  worker@my-project.iam" in done.out
    assert done.err == ""
