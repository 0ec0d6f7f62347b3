"""What the corpus does not hold: races, and what Kubernetes has and the generic server of `make kube` lacks."""

from __future__ import annotations

import threading

from tests.support.kubernetes_requests import (
    CONFIG_MAPS,
    JOB_SETS,
    JOBS,
    MERGE,
    PODS,
    Object,
    Requests,
    config_map,
    job_set,
    pod,
)


def _bind(requests: Requests, name: str) -> tuple[int, Object]:
    target = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "n1"}}
    code, found, _ = requests.send("POST", f"{PODS}/{name}/binding", target)
    return code, found


def test_of_writers_of_one_version_one_wins(requests: Requests) -> None:
    requests.ok("POST", CONFIG_MAPS, config_map("counter", count="0"))
    path = f"{CONFIG_MAPS}/counter"
    conflicts = []

    def count() -> None:
        for _ in range(10):
            while True:
                found = requests.ok("GET", path)
                found["data"]["count"] = str(int(found["data"]["count"]) + 1)
                code, _, _ = requests.send("PUT", path, found)
                if code == 200:
                    break
                conflicts.append(code)

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert requests.ok("GET", path)["data"]["count"] == "30"
    assert set(conflicts) <= {409}


def test_pages_show_one_moment(requests: Requests) -> None:
    for number in range(5):
        requests.ok("POST", CONFIG_MAPS, {**config_map(f"page-{number}"), "metadata": _labeled(f"page-{number}")})
    page = requests.ok("GET", CONFIG_MAPS, limit="2", labelSelector="page=yes")
    requests.ok("DELETE", f"{CONFIG_MAPS}/page-4")
    requests.ok("POST", CONFIG_MAPS, {**config_map("page-3a"), "metadata": _labeled("page-3a")})
    found = [item["metadata"]["name"] for item in page["items"]]
    while token := page["metadata"].get("continue"):
        page = requests.ok("GET", CONFIG_MAPS, **{"limit": "2", "labelSelector": "page=yes", "continue": token})
        found += [item["metadata"]["name"] for item in page["items"]]
    assert found == [f"page-{number}" for number in range(5)]


def _labeled(name: str) -> Object:
    return {"name": name, "labels": {"page": "yes"}}


def test_a_pod_is_bound_once_and_goes_with_grace(requests: Requests) -> None:
    made = requests.ok("POST", PODS, pod("bound"))
    assert (made["status"], made["spec"]["terminationGracePeriodSeconds"]) == (
        {"phase": "Pending", "qosClass": "BestEffort"},
        30,
    )
    assert _bind(requests, "bound")[0] == 201
    code, status = _bind(requests, "bound")
    assert (code, status["reason"]) == (409, "Conflict")
    assert 'already assigned to node "n1"' in status["message"]
    found = requests.ok("GET", f"{PODS}/bound")
    assert found["spec"]["nodeName"] == "n1"
    assert [(each["type"], each["status"]) for each in found["status"]["conditions"]] == [("PodScheduled", "True")]
    assert [
        each["metadata"]["name"] for each in requests.ok("GET", PODS, fieldSelector="spec.nodeName=n1")["items"]
    ] == ["bound"]
    going = requests.ok("DELETE", f"{PODS}/bound")
    assert (going["metadata"]["deletionGracePeriodSeconds"], going["metadata"]["generation"]) == (30, 2)
    shorter = requests.ok("DELETE", f"{PODS}/bound", {"gracePeriodSeconds": 5})
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    assert requests.ok("DELETE", f"{PODS}/bound", {"gracePeriodSeconds": 60})["metadata"] == shorter["metadata"]
    # The kubelet's last word.
    requests.ok("DELETE", f"{PODS}/bound", {"gracePeriodSeconds": 0, "preconditions": {"uid": made["metadata"]["uid"]}})
    assert requests.send("GET", f"{PODS}/bound")[0] == 404


def test_a_running_pod_does_not_change_and_its_status_has_a_door_of_its_own(requests: Requests) -> None:
    requests.ok("POST", PODS, pod("fixed"))
    code, status, _ = requests.send("PATCH", f"{PODS}/fixed", {"spec": {"hostname": "x"}}, media=MERGE)
    assert (code, status["reason"]) == (422, "Invalid")
    assert "pod updates may not change fields other than" in status["message"]
    ignored = requests.ok("PATCH", f"{PODS}/fixed", {"status": {"phase": "Running"}}, media=MERGE)
    assert ignored["status"]["phase"] == "Pending"
    taken = requests.ok("PATCH", f"{PODS}/fixed/status", {"status": {"phase": "Running"}}, media=MERGE)
    assert (taken["status"]["phase"], taken["metadata"]["generation"]) == ("Running", 1)


def test_a_quota_refuses_the_pod_too_much_and_nothing_is_left_of_it(requests: Requests) -> None:
    requests.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "small"}})
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1", "requests.google.com/tpu": "4"}}}
    requests.ok("POST", "/api/v1/namespaces/small/resourcequotas", quota)
    pods = "/api/v1/namespaces/small/pods"
    large = pod("large")
    large["spec"]["containers"][0]["resources"] = {"limits": {"google.com/tpu": "8"}}
    code, status, _ = requests.send("POST", pods, large)
    assert (code, status["reason"]) == (403, "Forbidden")
    expected = (
        "requested: requests.google.com/tpu=8, used: requests.google.com/tpu=0, limited: requests.google.com/tpu=4"
    )
    assert status["message"] == f'pods "large" is forbidden: exceeded quota: q, {expected}'
    requests.ok("POST", pods, pod("one"))
    code, status, _ = requests.send("POST", pods, pod("two"))
    assert (code, "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1" in status["message"]) == (
        403,
        True,
    )
    requests.ok("DELETE", f"{pods}/one")
    requests.ok("POST", pods, pod("two"))


def test_a_pod_needs_its_service_account(requests: Requests) -> None:
    strange = pod("strange")
    strange["spec"]["serviceAccountName"] = "nobody"
    code, status, _ = requests.send("POST", PODS, strange)
    assert (code, status["reason"]) == (403, "Forbidden")
    assert 'serviceaccount "nobody" not found' in status["message"]


def test_a_namespace_goes_with_its_last_object(requests: Requests) -> None:
    namespace, inside = "/api/v1/namespaces/passing", "/api/v1/namespaces/passing/configmaps"
    requests.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "passing"}})
    held = {**config_map("held"), "metadata": {"name": "held", "finalizers": ["example.test/hold"]}}
    requests.ok("POST", inside, held)
    requests.ok("POST", inside, config_map("free"))
    assert requests.ok("DELETE", namespace)["status"]["phase"] == "Terminating"
    assert [each["metadata"]["name"] for each in requests.ok("GET", inside)["items"]] == ["held"]
    code, status, _ = requests.send("POST", inside, config_map("late"))
    assert (code, status["details"]["causes"][0]["reason"]) == (403, "NamespaceTerminating")
    requests.ok("PATCH", f"{inside}/held", {"metadata": {"finalizers": []}}, media=MERGE)
    assert requests.send("GET", namespace)[0] == 404
    for lasting in ("default", "kube-system"):
        assert requests.send("DELETE", f"/api/v1/namespaces/{lasting}")[0] == 403


def test_a_deletion_shows_all_its_steps_to_watchers(requests: Requests) -> None:
    version = requests.ok("POST", JOB_SETS, job_set("b-steps-1"))["metadata"]["resourceVersion"]
    path = f"{JOB_SETS}/b-steps-1"
    requests.ok("DELETE", path, propagationPolicy="Foreground")
    requests.ok("PATCH", path, {"metadata": {"finalizers": None}}, media=MERGE)
    with requests.watch(JOB_SETS, resourceVersion=version, fieldSelector="metadata.name=b-steps-1") as events:
        seen = [next(events) for _ in range(2)]
    assert [event["type"] for event in seen] == ["MODIFIED", "DELETED"]
    first, last = (event["object"]["metadata"] for event in seen)
    assert first["finalizers"] == ["foregroundDeletion"]
    assert last["deletionTimestamp"] == first["deletionTimestamp"]
    assert int(last["resourceVersion"]) > int(first["resourceVersion"])


def test_a_set_is_denied_by_the_webhooks_name_after_its_schema(requests: Requests) -> None:
    long = job_set("b" * 60)
    code, status, _ = requests.send("POST", JOB_SETS, long)
    assert (code, status["reason"]) == (422, "Invalid")
    prefix = 'admission webhook "vjobset.kb.io" denied the request: JobSet.jobset.x-k8s.io'
    assert status["message"].startswith(prefix)
    long["spec"]["startupPolicy"] = {"startupPolicyOrder": "Sometimes"}
    code, status, _ = requests.send("POST", JOB_SETS, long)
    assert (code, "admission webhook" in status["message"]) == (422, False)


def test_what_is_not_emulated_is_refused_by_name(requests: Requests) -> None:
    requests.ok("POST", PODS, pod("logged"))
    for method, path, name in (
        ("GET", "/apis/apps/v1/namespaces/default/deployments", "deployments.apps"),
        ("GET", "/apis/batch/v1/cronjobs", "cronjobs.batch"),
        ("GET", "/api/v1/persistentvolumes", "persistentvolumes"),
        ("GET", f"{PODS}/logged/log", "pods/log"),
        ("POST", f"{PODS}/logged/eviction", "pods/eviction"),
        ("POST", f"{PODS}/logged/exec", "pods/exec"),
    ):
        code, status, _ = requests.send(method, path)
        assert (code, status["reason"]) == (501, "NotEmulated"), path
        assert status["message"].startswith(f"{name} is not emulated"), status["message"]
    code, status, _ = requests.send("PATCH", f"{PODS}/logged", {}, media="application/apply-patch+yaml")
    assert (code, status["message"].startswith("server-side apply is not emulated")) == (501, True)
    listed = {"spec": {"containers": [{"name": "host", "image": "other"}]}}
    code, status, _ = requests.send("PATCH", f"{PODS}/logged", listed, media="application/strategic-merge-patch+json")
    assert (code, "strategic merge patch with lists" in status["message"]) == (501, True)


def test_a_job_gets_its_selector_and_refuses_what_upstream_refuses(requests: Requests) -> None:
    spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": {"spec": pod("x")["spec"]}}
    made = requests.ok("POST", JOBS, {"metadata": {"name": "j"}, "spec": spec})
    uid = made["metadata"]["uid"]
    assert made["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert made["spec"]["template"]["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "j"
    assert (made["spec"]["backoffLimit"], made["spec"]["podReplacementPolicy"]) == (6, "TerminatingOrFailed")
    always = {**spec, "template": {"spec": {**pod("x")["spec"], "restartPolicy": "Always"}}}
    bare = {**spec, "completions": None}
    zero = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [0]}}]}
    for wrong, field in (
        (always, "spec.template.spec.restartPolicy"),
        (bare, "spec.completions"),
        ({**spec, "podFailurePolicy": zero}, "spec.podFailurePolicy.rules[0].onExitCodes.values[0]"),
        ({**spec, "backoffLimit": -1}, "spec.backoffLimit"),
    ):
        code, status, _ = requests.send("POST", JOBS, {"metadata": {"name": "wrong"}, "spec": wrong})
        assert (code, field in [cause["field"] for cause in status["details"]["causes"]]) == (422, True), status
