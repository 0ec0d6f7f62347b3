"""Where a host's storage proxy is, and what leads its clients to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bastion.agent.environment import CommandEnvironment, HostFacts, command_environment
from bastion.agent.identity import HostIdentity
from bastion.agent.sidecar.place import place_of, proxy_variables
from bastion.core.bucket.protocol import AgentArguments, Order, OrderAction

RUN = "abcdefghij-1"
FOLDER = Path("/state/run.1")
STORAGE = "storage.googleapis.com"
GCSFS_GRPC = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"


def identity(*, slices: int = 1) -> HostIdentity:
    arguments = AgentArguments(
        root="gs://b/t-bastion", bastion="t-bastion", job="train", run=RUN, run_key="ab" * 32, accelerator_type="v4-16",
        devices_per_host=4, hosts_per_slice=2, num_slices=slices, slice_index=0,
    )  # fmt: skip
    return HostIdentity(arguments=arguments, worker=1, peers=("127.100.3.1", "127.100.3.2"))


def build(
    *,
    base: dict[str, str] | None = None,
    env: dict[str, str] | None = None,
    slices: int = 1,
    emulated: bool = True,
    with_proxy: bool = True,
) -> CommandEnvironment:
    who = identity(slices=slices)
    order = Order(run=RUN, action=OrderAction.RUN, command="x", env=env or {}, proxy="lake:k")
    facts = HostFacts(
        marker="m", preempt_file="/p", checkpoint_file="/c", step_file="/s", results_file="/r",
        coordinator="127.100.9.1:20123",
        emulated=emulated, cpus=2,
        interpreter="/opt/bin/python", proxy=place_of(who, FOLDER, emulated=emulated) if with_proxy else None,
    )  # fmt: skip
    return command_environment(base or {"PATH": "/usr/bin"}, order, who, facts)


def test_hosts_that_share_a_machine_have_a_proxy_each_and_others_have_the_usual_one() -> None:
    assert place_of(identity(), FOLDER, emulated=True).url == "http://127.100.3.2:9080"
    assert place_of(identity(), FOLDER, emulated=False).url == "http://127.0.0.1:9080"


def test_every_kind_of_client_finds_the_proxy_and_trusts_it() -> None:
    found = build(env={"https_proxy": "http://mine:1", "CURL_CA_BUNDLE": "/mine"})
    for name in ("https_proxy", "HTTPS_PROXY"):
        assert found.variables[name] == "http://127.100.3.2:9080"
    for name in (
        "REQUESTS_CA_BUNDLE",
        "SSL_CERT_FILE",
        "CURL_CA_BUNDLE",
        "TENSORSTORE_CA_BUNDLE",
        "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
        "HTTPLIB2_CA_CERTS",
    ):
        assert found.variables[name] == "/state/run.1/proxy-certificates/ca-bundle.pem"
    assert found.variables["PROXY_CERT_PATH"] == "/state/run.1/proxy-certificates"
    assert found.overridden == ("CURL_CA_BUNDLE", "https_proxy")
    assert found.notes == ()


def test_the_metadata_server_and_the_slices_hosts_are_reached_directly_and_what_the_job_adds() -> None:
    found = build(env={"no_proxy": "wandb.example, .corp"}, base={"GCE_METADATA_HOST": "127.100.3.2:9254"}).variables
    assert found["no_proxy"] == found["NO_PROXY"]
    assert found["no_proxy"].split(",") == [
        "metadata.google.internal", "169.254.169.254", "localhost", "127.0.0.1", "::1", "127.100.3.1", "127.100.3.2",
        "127.100.9.1", "wandb.example", ".corp",
    ]  # fmt: skip


def test_hosts_of_other_slices_are_reached_directly_by_their_networks() -> None:
    assert "10.0.0.0/8" not in build().variables["no_proxy"].split(",")
    assert {"10.0.0.0/8", "127.0.0.0/8"} <= set(build(slices=2).variables["no_proxy"].split(","))
    assert "127.0.0.0/8" not in build(slices=2, emulated=False).variables["no_proxy"].split(",")


@pytest.mark.parametrize(
    "entry",
    [
        "*",
        ".googleapis.com",
        "googleapis.com:443",
        "*.com",
        STORAGE,
        f"x.{STORAGE}",
        "Storage.GoogleAPIs.com",
        "www.googleapis.com",
        "storage.mtls.googleapis.com",
        "commondatastorage.googleapis.com",
        "us-central1-storage.googleapis.com",
        "lake.storage.us-central1.rep.googleapis.com",
    ],
)
def test_a_job_cannot_lead_its_clients_around_by_no_proxy(entry: str) -> None:
    found = build(env={"NO_PROXY": f"a.example,{entry}"})
    assert found.variables["no_proxy"].endswith("127.100.9.1,a.example")
    assert found.notes == (f"removed {entry} from no_proxy: storage access must use the proxy",)


@pytest.mark.parametrize("entry", ["oauth2.googleapis.com", "fe80::1", "10.0.0.0/8", "example.com"])
def test_what_is_no_storage_host_stays(entry: str) -> None:
    found = build(env={"NO_PROXY": entry})
    assert found.variables["NO_PROXY"].endswith(f",{entry}")
    assert found.notes == ()


def test_an_endpoint_in_place_of_the_cloud_lies_behind_the_proxy_and_not_beside_it() -> None:
    base = {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:4443", "TENSORSTORE_GCS_HTTP_URL": "http://127.0.0.1:4443"}
    found = build(base=base, env={"STORAGE_EMULATOR_HOST": "http://other"})
    assert {"STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"} & set(found.variables) == set()
    (note,) = found.notes
    assert "removed STORAGE_EMULATOR_HOST, TENSORSTORE_GCS_HTTP_URL: they bypass" in note


def proxy(base: dict[str, str], env: dict[str, str]) -> dict[str, str]:
    order = Order(run=RUN, action=OrderAction.RUN, command="x", env=env, proxy="lake:k")
    return proxy_variables(place_of(identity(), FOLDER, emulated=True), base, order, marker="m")


def test_the_proxy_gets_the_agents_environment_and_what_the_job_says_of_it_and_nothing_else_of_the_job() -> None:
    found = proxy(
        {"HOME": "/root", "GOOGLE_APPLICATION_CREDENTIALS": "/key"},
        {"GCS_PROXY_KEYRING": "/ring", "DEBUG_LEVEL": "1", "https_proxy": "http://x", "GCS_PROXY_STATE_PATH": "/mine"},
    )
    assert found == {
        "HOME": "/root", "GOOGLE_APPLICATION_CREDENTIALS": "/key", "GCS_PROXY_KEYRING": "/ring", "DEBUG_LEVEL": "1",
        "GCP_KMS_BUCKET_KEY_MAPPING": "lake:k", "GCS_PROXY_LISTEN": "127.100.3.2:9080", "BASTION_PROXY": "m",
        "PROXY_CERT_PATH": "/state/run.1/proxy-certificates", "GCS_PROXY_STATE_PATH": "/state/run.1/proxy",
        "PYTHONUNBUFFERED": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "users"), [({}, "703"), ({"GCS_PROXY_USERS": "7"}, "7,703"), ({"GCS_PROXY_USERS": "any"}, "any")]
)
def test_a_proxy_admits_the_user_of_the_command(given: dict[str, str], users: str) -> None:
    order = Order(run=RUN, action=OrderAction.RUN, command="x", env=given, proxy="lake:k")
    found = proxy_variables(place_of(identity(), FOLDER, emulated=True), {}, order, marker="m", user=703)
    assert found["GCS_PROXY_USERS"] == users


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:4443", "127.0.0.1:4443"])
def test_the_machines_own_storage_endpoint_is_the_upstream_unless_the_job_names_another(endpoint: str) -> None:
    assert proxy({"STORAGE_EMULATOR_HOST": endpoint}, {})["GCS_PROXY_UPSTREAM"] == "http://127.0.0.1:4443"
    named = proxy({"STORAGE_EMULATOR_HOST": endpoint}, {"GCS_PROXY_UPSTREAM": "https://x:1"})
    assert named["GCS_PROXY_UPSTREAM"] == "https://x:1"
    assert "STORAGE_EMULATOR_HOST" not in named


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", {"session_kwargs": {"trust_env": True}}),
        ('{"token": "anon"}', {"token": "anon", "session_kwargs": {"trust_env": True}}),
        ('{"session_kwargs": {"a": 1, "trust_env": false}}', {"session_kwargs": {"a": 1, "trust_env": True}}),
    ],
)
def test_gcsfs_is_told_to_heed_the_proxy_and_keeps_what_the_job_set(given: str, expected: object) -> None:
    assert json.loads(build(env={"FSSPEC_GS": given} if given else {}).variables["FSSPEC_GS"]) == expected


@pytest.mark.parametrize(("given", "expected"), [({}, "false"), ({GCSFS_GRPC: "true"}, "true")])
def test_gcsfs_asks_nothing_over_grpc_unless_the_job_wants_it(given: dict[str, str], expected: str) -> None:
    assert build(env=given).variables[GCSFS_GRPC] == expected


@pytest.mark.parametrize(("given", "expected"), [({}, "false"), ({GCSFS_GRPC: "true"}, "true")])
def test_gcsfs_asks_an_endpoint_in_place_of_the_cloud_nothing_over_grpc_either(
    given: dict[str, str], expected: str
) -> None:
    base = {"PATH": "/usr/bin", "STORAGE_EMULATOR_HOST": "http://127.0.0.1:4443"}
    assert build(base=base, env=given, with_proxy=False).variables[GCSFS_GRPC] == expected
    assert GCSFS_GRPC not in build(with_proxy=False).variables


@pytest.mark.parametrize("name", ["API_ENDPOINT_OVERRIDE", "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE"])
def test_no_variable_leads_a_client_to_another_endpoint(name: str) -> None:
    found = build(env={name: "https://storage.example"})
    assert name not in found.variables
    assert found.notes == (f"removed {name}: they bypass the storage proxy",)


@pytest.mark.parametrize("given", ["{", "[]", '{"session_kwargs": 1}'])
def test_settings_of_fsspec_that_are_none_are_left_to_it(given: str) -> None:
    assert build(env={"FSSPEC_GS": given}).variables["FSSPEC_GS"] == given
