"""Who a host is, from its metadata."""

import http.server
import threading
from random import Random

import pytest

from bastion.agent.backoff import Backoff, jittered
from bastion.agent.identity import HostIdentity, parse_peers, parse_slice_index
from bastion.agent.metadata_server import MetadataServer, read_identity, wait_for_identity
from bastion.core.bucket.protocol import AgentArguments
from bastion.core.errors import InvalidDocument, NotFound, StoreUnavailable

ARGUMENTS = AgentArguments(
    root="/b/team-bastion",
    bastion="team-bastion",
    job="j",
    run="abcdefghij-1",
    run_key="ab" * 32,
    accelerator_type="v4-32",
    devices_per_host=4,
    hosts_per_slice=4,
    num_slices=2,
    slice_index=1,
)


@pytest.fixture
def metadata():
    """A metadata server on loopback: attributes that the test sets, and its client."""
    attributes: dict[str, str] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/computeMetadata/v1/instance/attributes/")
            known = self.headers.get("Metadata-Flavor") == "Google" and name in attributes
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(attributes.get(name, "").encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    client = MetadataServer.from_environment({"GCE_METADATA_HOST": f"127.0.0.1:{server.server_port}"})
    yield attributes, client
    server.shutdown()
    server.server_close()


def fill(attributes: dict[str, str]) -> None:
    attributes["bastion-agent"] = ARGUMENTS.to_bytes().decode()
    attributes["agent-worker-number"] = "2"
    attributes["worker-network-endpoints"] = "x:0:10.0.0.1,x:1:10.0.0.2,x:2:10.0.0.3,x:3:10.0.0.4"


@pytest.mark.parametrize(
    ("endpoints", "peers"),
    [
        ("10.0.0.1", ("10.0.0.1",)),
        ("10.0.0.1,10.0.0.2", ("10.0.0.1", "10.0.0.2")),
        ("unused:0:10.0.0.1, unused:1:10.0.0.2", ("10.0.0.1", "10.0.0.2")),
        ("", ()),
    ],
)
def test_both_formats_of_peers_are_read(endpoints: str, peers: tuple[str, ...]):
    assert parse_peers(endpoints) == peers


def test_a_third_format_of_peers_is_refused():
    with pytest.raises(InvalidDocument, match="not an address or"):
        parse_peers("a:b")


def test_a_host_counts_over_all_slices():
    identity = HostIdentity(arguments=ARGUMENTS, worker=2)
    assert (identity.host, identity.num_hosts) == (6, 8)


@pytest.mark.parametrize(
    ("tpu_env", "index"),
    [
        ("NODE_ID: 'b-abcdefghij-1-3'\nWORKER_ID: '0'\n", 3),
        ("NODE_ID: 'b-abcdefghij-1-3'\nMEGASCALE_SLICE_ID: '1'\n", 1),
        ("MEGASCALE_SLICE_ID: 2\n", 2),
    ],
    ids=["by-name", "by-platform", "unquoted"],
)
def test_a_node_learns_from_its_platform_which_slice_it_is(tpu_env: str, index: int):
    assert parse_slice_index(tpu_env) == index


@pytest.mark.parametrize("tpu_env", ["", "NODE_ID: 'by-hand'\n", "MEGASCALE_SLICE_ID: 'x'\n"])
def test_a_platform_that_does_not_say_which_slice_is_asked_again(tpu_env: str):
    with pytest.raises(InvalidDocument, match="MEGASCALE_SLICE_ID"):
        parse_slice_index(tpu_env)


def test_a_slice_beyond_the_job_is_refused():
    with pytest.raises(InvalidDocument, match="slice 2"):
        HostIdentity(arguments=ARGUMENTS.model_copy(update={"slice_index": 2}), worker=0)


def test_a_worker_number_beyond_the_slice_is_refused():
    with pytest.raises(InvalidDocument, match="worker 4"):
        HostIdentity(arguments=ARGUMENTS, worker=4)


def test_the_metadata_server_says_who_this_host_is(metadata):
    attributes, client = metadata
    fill(attributes)
    identity = read_identity(client)
    assert identity == HostIdentity(
        arguments=ARGUMENTS, worker=2, peers=("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
    )


def test_a_node_of_a_gang_is_told_its_slice_by_the_platform(metadata):
    attributes, client = metadata
    fill(attributes)
    attributes["bastion-agent"] = ARGUMENTS.model_copy(update={"slice_index": None}).to_bytes().decode()
    with pytest.raises(NotFound, match="tpu-env"):
        read_identity(client)
    attributes["tpu-env"] = "NODE_ID: 'b-abcdefghij-1-1'\n"
    assert read_identity(client).host == 6
    assert read_identity(client).slices_address == ""
    attributes["tpu-env"] += "MEGASCALE_COORDINATOR_ADDRESS: '10.0.0.9:8080'\n"
    assert read_identity(client).slices_address == "10.0.0.9:8080"


def test_a_host_waits_until_its_metadata_is_complete(metadata):
    attributes, client = metadata
    slept: list[float] = []

    def fill_next(seconds: float) -> None:
        slept.append(seconds)
        match len(slept):
            case 1:
                attributes["bastion-agent"] = "{half"
            case 2:
                fill(attributes)
                attributes["agent-worker-number"] = "soon"
            case 3:
                fill(attributes)
                attributes["worker-network-endpoints"] = "10.0.0.1"
            case _:
                fill(attributes)

    assert wait_for_identity(client, Backoff(Random(1)), fill_next).worker == 2
    assert len(slept) == 4
    assert slept == sorted(slept)


def test_a_missing_attribute_and_a_silent_server_are_different_errors(metadata):
    _, client = metadata
    with pytest.raises(NotFound):
        client.attribute("nothing")
    with pytest.raises(StoreUnavailable):
        MetadataServer("127.0.0.1:1").attribute("nothing")


def test_delays_double_up_to_the_last_and_begin_anew_after_a_success():
    backoff = Backoff(Random(1), first_seconds=1.0, last_seconds=4.0)
    for most in (1.0, 2.0, 4.0, 4.0):
        assert most / 2 <= backoff.next() <= most
    backoff.reset()
    assert backoff.next() <= 1.0


def test_jitter_stays_within_its_share():
    rng = Random(1)
    drawn = [jittered(10.0, rng) for _ in range(200)]
    assert 8.0 <= min(drawn) < 9.0 < 11.0 < max(drawn) <= 12.0
