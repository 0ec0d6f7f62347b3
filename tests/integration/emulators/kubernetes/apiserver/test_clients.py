"""Foreign clients: the official Python package, and kubectl where it is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion.emulators.kubernetes.apiserver import ApiServer
from tests.support.kubernetes_requests import job_set, pod

kubernetes = pytest.importorskip("kubernetes")

Kubectl = Callable[..., subprocess.CompletedProcess[str]]

_SET = {"group": "jobset.x-k8s.io", "version": "v1alpha2", "namespace": "default", "plural": "jobsets"}


@pytest.fixture(scope="module")
def client(server: ApiServer) -> Iterator[Any]:
    config = str(server.state_dir / "kubeconfig")
    with kubernetes.config.new_client_from_config(config_file=config) as opened:
        yield opened


def test_the_official_client_reads_its_models(client: Any) -> None:
    core = kubernetes.client.CoreV1Api(client)
    made = core.create_namespaced_pod("default", pod("typed", labels={"app": "typed"}))
    assert (made.status.phase, made.spec.containers[0].image_pull_policy) == ("Pending", "IfNotPresent")
    listed = core.list_namespaced_pod("default", label_selector="app in (typed)", field_selector="status.phase=Pending")
    assert [each.metadata.uid for each in listed.items] == [made.metadata.uid]
    assert kubernetes.client.VersionApi(client).get_code().git_version.startswith("v1.")
    system = core.read_namespace("kube-system")
    assert (system.status.phase, bool(system.metadata.uid)) == ("Active", True)
    core.delete_namespaced_pod("typed", "default")
    with pytest.raises(kubernetes.client.ApiException) as gone:
        core.read_namespaced_pod("typed", "default")
    assert (gone.value.status, json.loads(gone.value.body)["reason"]) == (404, "NotFound")


def test_the_official_client_pages_and_watches_from_the_list_on(client: Any) -> None:
    core = kubernetes.client.CoreV1Api(client)
    for number in range(5):
        core.create_namespaced_config_map("kube-public", {"metadata": {"name": f"c-{number}"}})
    names, token, version = [], None, None
    while version is None or token:
        page = core.list_namespaced_config_map("kube-public", limit=2, _continue=token)
        names += [each.metadata.name for each in page.items]
        token, version = page.metadata._continue, page.metadata.resource_version
    assert names == [f"c-{number}" for number in range(5)]
    core.patch_namespaced_config_map("c-1", "kube-public", {"data": {"a": "b"}})
    core.delete_namespaced_config_map("c-2", "kube-public")
    watch = kubernetes.watch.Watch()
    seen = []
    for event in watch.stream(
        core.list_namespaced_config_map, "kube-public", resource_version=version, timeout_seconds=20
    ):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 2:
            watch.stop()
    assert seen == [("MODIFIED", "c-1"), ("DELETED", "c-2")]


def test_the_official_client_handles_sets(client: Any) -> None:
    sets = kubernetes.client.CustomObjectsApi(client)
    made = sets.create_namespaced_custom_object(body=job_set("b-client-1"), field_validation="Strict", **_SET)
    assert made["spec"]["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    with pytest.raises(kubernetes.client.ApiException) as again:
        sets.create_namespaced_custom_object(body=job_set("b-client-1"), **_SET)
    assert (again.value.status, json.loads(again.value.body)["reason"]) == (409, "AlreadyExists")
    going = sets.delete_namespaced_custom_object(name="b-client-1", propagation_policy="Foreground", **_SET)
    assert going["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert [each["metadata"]["name"] for each in sets.list_namespaced_custom_object(**_SET)["items"]] == ["b-client-1"]


@pytest.fixture
def kubectl(server: ApiServer, tmp_path: Path) -> Kubectl:
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed")
    fixed = [program, f"--kubeconfig={server.state_dir / 'kubeconfig'}", f"--cache-dir={tmp_path}"]

    def run(*arguments: str, document: object = None) -> subprocess.CompletedProcess[str]:
        given = "" if document is None else json.dumps(document)
        return subprocess.run(
            [*fixed, *arguments], input=given, capture_output=True, text=True, timeout=30, check=False
        )

    return run


def test_kubectl_creates_gets_labels_and_deletes(kubectl: Kubectl) -> None:
    made = kubectl("create", "-f", "-", document=job_set("b-kubectl-1"))
    assert made.stdout == "jobset.jobset.x-k8s.io/b-kubectl-1 created\n", made.stderr
    found = json.loads(kubectl("get", "jobsets", "b-kubectl-1", "-o", "json").stdout)
    assert found["spec"]["replicatedJobs"][0]["groupName"] == "default"
    assert "b-kubectl-1" in kubectl("get", "jobset.jobset.x-k8s.io", "-o", "wide").stdout
    assert kubectl("label", "jobset", "b-kubectl-1", "a=b").returncode == 0
    assert kubectl("get", "jobset", "-l", "a=b", "-o", "name").stdout == "jobset.jobset.x-k8s.io/b-kubectl-1\n"
    gone = kubectl("delete", "jobset", "b-kubectl-1", "--cascade=background")
    assert gone.stdout == 'jobset.jobset.x-k8s.io "b-kubectl-1" deleted\n', gone.stderr
    assert "NotFound" in kubectl("get", "jobset", "b-kubectl-1").stderr


def test_kubectl_shows_what_people_look_for(kubectl: Kubectl) -> None:
    document = {"apiVersion": "v1", "kind": "Pod", **pod("shown")}
    assert kubectl("create", "-f", "-", document=document).returncode == 0
    wide = kubectl("get", "pods", "shown", "-o", "wide").stdout.splitlines()
    assert wide[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE", "NOMINATED", "NODE"]
    assert wide[1].split()[:4] == ["shown", "0/1", "Pending", "0"]
    assert wide[1].split()[5:] == ["<none>", "<none>", "<none>"]
    seen = kubectl("get", "pods", "shown", "-w", "--request-timeout=1s").stdout.splitlines()
    assert seen[1].split()[:4] == ["shown", "0/1", "Pending", "0"]
    assert kubectl("get", "namespaces").stdout.splitlines()[1].split()[:2] == ["default", "Active"]


def test_kubectl_checks_fields_on_the_server(kubectl: Kubectl) -> None:
    wrong = job_set("b-kubectl-2")
    wrong["spec"]["nothing"] = 1
    refused = kubectl("create", "-f", "-", document=wrong)
    assert refused.returncode != 0
    assert 'unknown field "spec.nothing"' in refused.stderr


def test_kubectl_watches(kubectl: Kubectl) -> None:
    document = {"apiVersion": "v1", "kind": "Pod", **pod("watched")}
    assert kubectl("create", "-f", "-", document=document).returncode == 0
    seen = kubectl("get", "pods", "watched", "-w", "-o", "name", "--request-timeout=1s")
    assert seen.stdout.splitlines()[0] == "pod/watched"
    assert kubectl("wait", "pod/watched", "--for=jsonpath={.status.phase}=Pending", "--timeout=5s").returncode == 0
    assert kubectl("delete", "pod", "watched").returncode == 0


def test_kubectl_learns_by_name_that_server_side_apply_is_not_emulated(kubectl: Kubectl) -> None:
    refused = kubectl("apply", "--server-side", "-f", "-", document=job_set("b-kubectl-3"))
    assert refused.returncode != 0
    assert "server-side apply is not emulated" in refused.stderr
