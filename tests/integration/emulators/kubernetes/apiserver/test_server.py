"""The API server's lives: address, restarts, faults, its limits of time."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time

import pytest

from bastion.emulators.kubernetes import locate
from bastion.emulators.kubernetes.apiserver import ApiServer, Fault, watches
from bastion.emulators.state_folder import EmulatorRunning
from tests.integration.emulators.kubernetes.apiserver.conftest import Fresh
from tests.support.kubernetes_requests import CONFIG_MAPS, JOB_SETS, MERGE, PODS, Requests, config_map, job_set, pod
from tests.support.waiting import until


def test_the_address_is_published_for_this_user_while_the_server_answers(fresh: Fresh) -> None:
    server = fresh()
    folder = server.state_dir
    assert locate(folder) == server.address
    for name in ("kubernetes.json", "kubeconfig", "server.pem", "objects.sqlite"):
        assert (folder / name).stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o777 == 0o700
    server.close()
    assert locate(folder) is None


def test_a_folder_has_one_server(fresh: Fresh) -> None:
    server = fresh()
    with pytest.raises(EmulatorRunning, match="already serves"):
        ApiServer(server.state_dir).open()
    assert Requests(server.address).ok("GET", CONFIG_MAPS)["items"] == []


def test_a_restart_keeps_address_identity_objects_and_versions(fresh: Fresh) -> None:
    server = fresh()
    requests = Requests(server.address)
    address, uid = server.address, requests.ok("GET", "/api/v1/namespaces/kube-system")["metadata"]["uid"]
    made = requests.ok("POST", JOB_SETS, job_set("b-one-1"))
    gone = requests.ok("POST", CONFIG_MAPS, config_map("gone"))
    requests.ok("DELETE", f"{CONFIG_MAPS}/gone")
    last = requests.ok("GET", CONFIG_MAPS)["metadata"]["resourceVersion"]
    server.close()
    server.open()
    assert server.address == address
    assert requests.ok("GET", "/api/v1/namespaces/kube-system")["metadata"]["uid"] == uid
    assert requests.ok("GET", f"{JOB_SETS}/b-one-1") == made
    assert requests.send("GET", f"{CONFIG_MAPS}/gone")[0] == 404
    assert int(requests.ok("POST", CONFIG_MAPS, config_map("new"))["metadata"]["resourceVersion"]) > int(last)
    # What was before is not remembered as changes, and that is said.
    with requests.watch(CONFIG_MAPS, resourceVersion=gone["metadata"]["resourceVersion"]) as events:
        event = next(events)
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    with requests.watch(CONFIG_MAPS, resourceVersion=last) as events:
        assert next(events)["object"]["metadata"]["name"] == "new"


_KILLED = """
import os, sys
from pathlib import Path
from bastion.emulators.kubernetes.apiserver import ApiServer
ApiServer(Path(sys.argv[1])).open()
print("open", flush=True)
sys.stdin.read()
"""


def test_what_was_acknowledged_outlives_a_crash(fresh: Fresh) -> None:
    server = fresh()
    server.close()
    command = [sys.executable, "-c", _KILLED, str(server.state_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        address = locate(server.state_dir)
        assert address is not None
        made = Requests(address).ok("POST", CONFIG_MAPS, config_map("kept", key="value"))
        process.kill()
    assert locate(server.state_dir) is None
    server.open()
    assert Requests(server.address).ok("GET", f"{CONFIG_MAPS}/kept") == made


def test_watches_end_with_the_server_at_once(fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the end itself can wake the watch in time.
    monkeypatch.setattr(watches, "_PEER_CHECK_SECONDS", 60.0)
    server = fresh()
    with Requests(server.address).watch(CONFIG_MAPS, resourceVersion="1") as events:
        closing = threading.Thread(target=server.close)
        began = time.monotonic()
        closing.start()
        assert list(events) == []
        # Later the server would break the connection.
        assert time.monotonic() - began < 4
    closing.join()


def test_a_refusal_says_when_to_come_back_and_nothing_was_done(fresh: Fresh) -> None:
    server = fresh()
    requests = Requests(server.address)
    server.faults.plan(lambda method, path: Fault(refuse=429, retry_after=7) if method == "POST" else None)
    code, status, headers = requests.send("POST", CONFIG_MAPS, config_map("c"))
    assert (code, status["reason"], headers["retry-after"]) == (429, "TooManyRequests", "7")
    assert status["details"]["retryAfterSeconds"] == 7
    server.faults.plan(None)
    assert requests.send("GET", f"{CONFIG_MAPS}/c")[0] == 404


def test_a_lost_reply_is_of_a_request_that_was_carried_out(fresh: Fresh) -> None:
    server = fresh()
    requests = Requests(server.address)
    server.faults.plan(lambda method, path: Fault(cut_reply=True) if method == "POST" else None)
    with pytest.raises((http.client.HTTPException, OSError)):
        requests.send("POST", JOB_SETS, job_set("b-one-1"))
    server.faults.plan(None)
    code, status, _ = requests.send("POST", JOB_SETS, job_set("b-one-1"))
    assert (code, status["reason"]) == (409, "AlreadyExists")


def test_cut_watches_break_and_a_lost_history_is_told(fresh: Fresh) -> None:
    server = fresh()
    requests = Requests(server.address)
    version = requests.ok("GET", CONFIG_MAPS)["metadata"]["resourceVersion"]
    with contextlib.closing(requests.connect()) as connection:
        headers = {"Authorization": f"Bearer {server.address.token}"}
        connection.request("GET", f"{CONFIG_MAPS}?watch=true&resourceVersion={version}", headers=headers)
        answer = connection.getresponse()
        server.cut_watches()
        # Iterating would take the break for the end.
        with pytest.raises((http.client.HTTPException, OSError)):
            answer.read()
    requests.ok("POST", CONFIG_MAPS, config_map("c"))
    server.expire_history()
    with requests.watch(CONFIG_MAPS, resourceVersion=version) as events:
        assert next(events)["object"]["reason"] == "Expired"
        assert list(events) == []
    server.faults.plan(lambda _method, path: Fault(too_old=True) if "configmaps" in path else None)
    assert requests.send("GET", CONFIG_MAPS)[0] == 410


def test_bookmarks_carry_versions_of_other_kinds_too(fresh: Fresh) -> None:
    server = fresh(bookmark_seconds=0.05)
    requests = Requests(server.address)
    with requests.watch(PODS, resourceVersion="1", allowWatchBookmarks="true", timeoutSeconds="20") as events:
        made = requests.ok("POST", CONFIG_MAPS, config_map("c"))
        wanted = int(made["metadata"]["resourceVersion"])
        bookmark = next(event for event in events if int(event["object"]["metadata"]["resourceVersion"]) >= wanted)
    assert (bookmark["type"], bookmark["object"]["kind"]) == ("BOOKMARK", "Pod")


def test_a_watcher_that_left_is_noticed(fresh: Fresh) -> None:
    server = fresh()
    requests = Requests(server.address)
    before = threading.active_count()
    with requests.watch(CONFIG_MAPS, resourceVersion="1"):
        assert threading.active_count() > before
    until(lambda: threading.active_count() <= before, 10)


def test_a_change_reaches_a_watcher_within_milliseconds(fresh: Fresh) -> None:
    requests = Requests(fresh().address)
    requests.ok("POST", CONFIG_MAPS, config_map("c"))
    delays = []
    with requests.watch(CONFIG_MAPS) as events:
        next(events)
        for number in range(10):
            sent = time.monotonic()
            requests.ok("PATCH", f"{CONFIG_MAPS}/c", {"data": {"n": str(number)}}, media=MERGE)
            next(events)
            delays.append(time.monotonic() - sent)
    # With the request itself; a poll would show in every one of them.
    assert min(delays) < 0.1


def test_a_thousand_pods_are_listed_within_a_tenth_of_a_second(fresh: Fresh) -> None:
    server = fresh()
    requests = Requests(server.address)
    connection = requests.connect()
    headers = {"Authorization": f"Bearer {server.address.token}", "Content-Type": "application/json"}
    for number in range(1000):
        connection.request("POST", PODS, json.dumps(pod(f"p-{number}", labels={"n": str(number % 10)})), headers)
        assert connection.getresponse().read()
    connection.close()
    times = []
    for _ in range(3):
        began = time.monotonic()
        code, found, _ = requests.send("GET", PODS, labelSelector="n=3")
        times.append(time.monotonic() - began)
        assert code == 200
        assert len(found["items"]) == 100
    # A busy machine takes longer; one that encodes anew takes longer each time.
    assert min(times) < 0.1
