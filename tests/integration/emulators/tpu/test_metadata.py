"""The metadata server of an emulated host, over real HTTP on a loopback address."""

from __future__ import annotations

import datetime
import http.client
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import google.auth.transport.requests
import pytest
from google.auth.compute_engine import _metadata

from bastion.agent.metadata_server import MetadataServer as Agent
from bastion.agent.metadata_server import read_identity
from bastion.emulators.tpu.host import HostFolder, HostSpec
from bastion.emulators.tpu.metadata import MetadataServer, worker_network_endpoints
from bastion.net import peers

FLAVOR = {"Metadata-Flavor": "Google"}
ARGUMENTS = {
    "root": "/bucket/a-bastion",
    "bastion": "a-bastion",
    "job": "a-job",
    "run": "aaaaaaaaaa-1",
    "run_key": "0" * 64,
    "hosts_per_slice": 2,
}


@dataclass(frozen=True)
class Served:
    address: tuple[str, int]
    folder: HostFolder

    def ask(self, path: str, *, method: str = "GET", body: str | None = None, **headers: str) -> tuple[int, str, str]:
        connection = http.client.HTTPConnection(*self.address, timeout=20)
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, response.read().decode(), response.headers.get("Metadata-Flavor", "")
        finally:
            connection.close()

    def read(self, path: str) -> str:
        status, body, flavor = self.ask(f"/computeMetadata/v1/{path}", **FLAVOR)
        assert (status, flavor) == (200, "Google"), (path, status, body)
        return body


def _spec(**changes: object) -> HostSpec:
    fields = {
        "vm_id": "b-x-1-abcd1234-1",
        "node_id": "b-x-1",
        "project": "a-project",
        "zone": "us-central2-b",
        "worker": 1,
        "addresses": ("127.100.9.1", "127.100.9.2"),
        "port": 9254,
        "accelerator_type": "v4-16",
        "topology": "2x2x2",
        "service_account": "me@a-project.iam.gserviceaccount.com",
        "metadata": {"bastion-agent": json.dumps(ARGUMENTS), "bastion-token": "t", "agent-worker-number": "77"},
        "state_dir": "/nowhere",
        "orphan_seconds": 60.0,
        "grace_seconds": 5.0,
    }
    return HostSpec(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    listener = socket.create_server(("127.0.0.1", 0))
    folder = HostFolder(tmp_path)
    server = MetadataServer(_spec(), folder, listener)
    server.start(stop_poll_seconds=0.01)
    yield Served(listener.getsockname(), folder)
    server.stop()


def test_the_root_tells_google_auth_that_this_is_a_metadata_server(served: Served) -> None:
    assert served.ask("/")[0::2] == (200, "Google")


@pytest.mark.parametrize("headers", [{}, {"Metadata-Flavor": "google"}, {**FLAVOR, "X-Forwarded-For": "10.0.0.1"}])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_request_without_the_flavor_or_through_a_proxy_learns_nothing(
    served: Served, headers: dict[str, str], method: str
) -> None:
    path = "/computeMetadata/v1/instance/attributes/bastion-token"
    status, body, flavor = served.ask(path, method=method, **headers)
    assert (status, flavor) == (403, "Google")
    assert body.strip() != "t"


@pytest.mark.parametrize(
    "headers",
    [{"Host": "evil.example:9254"}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}],
    ids=["host", "origin", "site"],
)
def test_a_web_page_learns_nothing(served: Served, headers: dict[str, str]) -> None:
    """A page whose name resolves to the host's address may send the flavor, too."""
    path = "/computeMetadata/v1/instance/attributes/bastion-token"
    status, body, _ = served.ask(path, **FLAVOR, **headers)
    assert status == 403
    assert body.startswith("refused: ")


@pytest.mark.parametrize("host", ["metadata.google.internal", "metadata", "169.254.169.254", "127.100.9.2:9254"])
def test_clients_may_use_the_real_servers_names(served: Served, host: str) -> None:
    assert served.ask("/computeMetadata/v1/instance/name", **FLAVOR, Host=host)[0] == 200


def test_another_user_of_this_machine_learns_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.getuid()
    # The peer is this very process; to the server it looks like another user's, if the server were somebody else.
    monkeypatch.setattr(peers, "TRUSTED_UIDS", ())
    monkeypatch.setattr(peers.os, "getuid", lambda: uid + 1)
    status, body, _ = served.ask("/computeMetadata/v1/instance/attributes/bastion-token", **FLAVOR)
    assert (status, body) == (403, "refused: the request comes from another user of this machine\n")


@pytest.mark.parametrize(
    "path", ["instance/nothing", "instance/id/deeper", "nothing", "../../etc/passwd", "instance//id"]
)
def test_what_is_not_there_is_404(served: Served, path: str) -> None:
    assert served.ask(f"/computeMetadata/v1/{path}", **FLAVOR)[0] == 404
    assert served.ask(f"/{path}", **FLAVOR)[0] == 404


def test_a_host_knows_itself_and_its_peers(served: Served) -> None:
    assert served.read("instance/attributes/agent-worker-number") == "1"
    assert served.read("instance/attributes/worker-network-endpoints") == "unused:0:127.100.9.1,unused:1:127.100.9.2"
    assert served.read("instance/attributes/accelerator-type") == "v4-16"
    assert served.read("instance/attributes/instance-id") == "b-x-1"
    assert "ACCELERATOR_TYPE: 'v4-16'\n" in served.read("instance/attributes/tpu-env")
    assert served.read("instance/attributes/bastion-token") == "t"
    assert served.read("instance/name") == "t1v-n-b-x-1-w-1"
    assert served.read("instance/zone").endswith("/us-central2-b")
    assert served.read("instance/id").isdigit()
    assert served.read("instance/network-interfaces/0/ip") == "127.100.9.2"
    assert served.read("project/project-id") == "a-project"


def test_the_agent_reads_its_identity_from_it(served: Served) -> None:
    identity = read_identity(Agent(f"{served.address[0]}:{served.address[1]}"))
    assert (identity.worker, identity.peers) == (1, ("127.100.9.1", "127.100.9.2"))
    assert identity.arguments.job == "a-job"


def test_google_auth_reads_its_account_and_token_from_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    base = f"http://{served.address[0]}:{served.address[1]}/computeMetadata/v1/"
    monkeypatch.setattr(_metadata, "_get_metadata_root", lambda *_args, **_kwargs: base)
    request = google.auth.transport.requests.Request()

    account = _metadata.get(request, "instance/service-accounts/default/", recursive=True)
    token, expiry = _metadata.get_service_account_token(request)

    assert account["email"] == "me@a-project.iam.gserviceaccount.com"
    assert account["scopes"] == ["https://www.googleapis.com/auth/cloud-platform"]
    assert (token, expiry > datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)) == ("emulated", True)


def test_a_folder_lists_its_names_and_as_json_its_values(served: Served) -> None:
    names = served.read("instance/attributes/").splitlines()
    assert {"agent-worker-number", "bastion-agent", "bastion-token", "tpu-env"} <= set(names)
    assert "attributes/" in served.read("instance/").splitlines()
    assert json.loads(served.read("instance/attributes/?recursive=true"))["bastion-token"] == "t"


def test_being_preempted_shows_at_once_and_wakes_who_waits_for_it(served: Served) -> None:
    assert served.read("instance/maintenance-event") == "NONE"
    assert served.read("instance/preempted") == "FALSE"
    assert served.read("instance/preempted?wait_for_change=true&timeout_sec=0") == "FALSE"
    served.folder.preempted.touch()
    assert served.read("instance/preempted") == "TRUE"


def test_guest_attributes_are_read_as_they_were_written(served: Served) -> None:
    path = "/computeMetadata/v1/instance/guest-attributes/bastion/rc"
    assert served.ask(path, **FLAVOR)[0] == 404
    assert served.ask(path, method="PUT", body="17", **FLAVOR)[0] == 200
    assert served.read("instance/guest-attributes/bastion/rc") == "17"
    assert served.read("instance/guest-attributes/bastion/") == "rc\n"


def test_nothing_but_guest_attributes_can_be_written(served: Served) -> None:
    for path in ("instance/attributes/bastion-token", "instance/guest-attributes/a", "instance/guest-attributes/a/b/c"):
        assert served.ask(f"/computeMetadata/v1/{path}", method="PUT", body="x", **FLAVOR)[0] == 404
    huge = "x" * (256 * 1024 + 1)
    path = "/computeMetadata/v1/instance/guest-attributes/a/b"
    assert served.ask(path, method="PUT", body=huge, **FLAVOR)[0] == 413
    assert served.read("instance/attributes/bastion-token") == "t"


def test_endpoints_are_numbered_triples() -> None:
    assert worker_network_endpoints(("10.0.0.1",)) == "unused:0:10.0.0.1"
