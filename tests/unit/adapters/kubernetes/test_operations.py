"""An API path says in RBAC's terms what a request does."""

from __future__ import annotations

import pytest

from bastion.adapters.kubernetes.operations import operation

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/training/jobsets"


@pytest.mark.parametrize(
    ("verb", "path", "permission", "words"),
    [
        (
            "list",
            "/api/v1/namespaces/training/pods",
            "list pods in namespace training",
            "cannot list pods in namespace",
        ),
        (
            "create",
            JOBSETS,
            "create jobsets.jobset.x-k8s.io in namespace training",
            "cannot create jobsets in namespace",
        ),
        ("delete", f"{JOBSETS}/b-x-1", "delete jobsets.jobset.x-k8s.io in namespace training", "jobsets/b-x-1 in"),
        (
            "get",
            "/api/v1/namespaces/kube-system",
            "get namespaces in the cluster",
            "cannot get namespaces/kube-system of",
        ),
        ("list", "/api/v1/nodes", "list nodes in the cluster", "cannot list nodes of cluster west"),
        (
            "get",
            "/api/v1/namespaces/a/pods/p/log",
            "get pods/log in namespace a",
            "cannot get pods/log/p in namespace a",
        ),
    ],
)
def test_a_path_names_the_permission_and_the_object(verb: str, path: str, permission: str, words: str) -> None:
    doing = operation("west", verb, path)
    assert permission == doing.permission
    assert words in str(doing)
    assert str(doing).endswith("of cluster west")


@pytest.mark.parametrize("path", ["/healthz", "/api", "/apis/batch/v1", "/version"])
def test_a_path_without_a_resource_is_a_mistake_of_ours(path: str) -> None:
    with pytest.raises(ValueError, match="names no resource"):
        operation("west", "get", path)
