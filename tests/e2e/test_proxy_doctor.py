"""`bastion proxy doctor` before proxies that are none, and in environments in which clients would fail or go around."""

from __future__ import annotations

import datetime
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.net.http1 import HttpServer, Request, Response
from bastion.net.http1.takeover import Secured
from bastion.net.tls import Authority, new_key, server_context
from bastion.proxy.serving.authority import ProxyAuthority
from bastion.wiring import proxy_doctor

pytestmark = pytest.mark.e2e

HOST = "storage.googleapis.com"
NOW = datetime.datetime.now(datetime.timezone.utc)
BUNDLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE", "TENSORSTORE_CA_BUNDLE")


def environment(port: int, bundle: Path, **more: str) -> dict[str, str]:
    """Of a client that would be well equipped, but for what is given."""
    url = f"http://127.0.0.1:{port}"
    return {
        "https_proxy": url,
        "HTTPS_PROXY": url,
        "no_proxy": "metadata.google.internal,169.254.169.254,localhost,127.0.0.1",
        "FSSPEC_GS": '{"session_kwargs": {"trust_env": true}}',
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        **dict.fromkeys(BUNDLES, str(bundle)),
        **more,
    }


def serving(context: Callable[[], ssl.SSLContext]) -> HttpServer:
    """What answers CONNECT and then shows a certificate: a proxy, or a tunnel to a service that has it."""

    def connected(_: Request) -> Response:
        return Response(status=200, takeover=Secured(context=context(), handler=lambda _: Response(status=200)))

    server = HttpServer(connected)
    server.open()
    return server


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The port of what shows certificates of a proxy's authority, and the folder where that is published."""
    folder = tmp_path_factory.mktemp("proxy")
    authority = ProxyAuthority(folder / "state")
    authority.publish(folder / "certs")
    server = serving(lambda: authority.context(HOST))
    yield server.port, folder / "certs"
    server.close()


@pytest.fixture(scope="module")
def tunnel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """The port of a plain tunnel, and a bundle with the authority of the service at its end."""
    folder = tmp_path_factory.mktemp("tunnel")
    authority = Authority.new("Some public authority", now=NOW, lifetime=datetime.timedelta(days=2))
    leaf = authority.sign("storage", [HOST], key=new_key(), now=NOW, lifetime=datetime.timedelta(days=1))
    (folder / "leaf.pem").write_bytes(leaf.private_pem)
    (folder / "bundle.pem").write_bytes(authority.public_pem)
    server = serving(lambda: server_context(folder / "leaf.pem"))
    yield server.port, folder / "bundle.pem"
    server.close()


def bad(variables: dict[str, str]) -> list[str]:
    """What is found wrong, with the advice."""
    return [f"{found.what}: {found.advice}" for found in proxy_doctor.examine(variables) if not found.good]


def test_a_client_of_the_encrypting_proxy_lacks_nothing(proxy: tuple[int, Path]) -> None:
    port, certs = proxy
    assert bad(environment(port, certs / "ca-bundle.pem")) == []
    assert bad(environment(port, certs / "ca-bundle.pem", PROXY_CERT_PATH=str(certs))) == []


def test_a_tunnel_whose_certificate_verifies_is_not_the_encrypting_proxy(tunnel: tuple[int, Path]) -> None:
    [said] = bad(environment(*tunnel))
    assert "by CN=Some public authority, which is not the encrypting proxy's authority" in said
    assert "without encryption" in said


def test_an_authority_that_only_has_the_proxys_name_is_not_the_proxys(tmp_path: Path, proxy: tuple[int, Path]) -> None:
    other = ProxyAuthority(tmp_path / "state")
    server = serving(lambda: other.context(HOST))
    try:
        found = bad(environment(server.port, proxy[1] / "ca-bundle.pem"))
    finally:
        server.close()
    assert "by another proxy's authority" in found[0]
    assert len(found) == 1 + len(BUNDLES)


@pytest.mark.parametrize("name", [*BUNDLES, "HTTPLIB2_CA_CERTS", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE"])
def test_each_bundle_must_vouch_for_the_proxy(proxy: tuple[int, Path], tunnel: tuple[int, Path], name: str) -> None:
    port, certs = proxy
    found = bad(environment(port, certs / "ca-bundle.pem", **{name: str(tunnel[1])}))
    assert len(found) == 1
    assert found[0].startswith(f"{name} is {tunnel[1]}, which does not contain the proxy's authority: ")


@pytest.mark.parametrize("variable", ["no_proxy", "NO_PROXY"])
@pytest.mark.parametrize(
    "entry",
    ["www.googleapis.com", ".googleapis.com", "storage.mtls.googleapis.com", "lake.storage.googleapis.com", "*"],
)
def test_no_storage_host_may_be_exempt(proxy: tuple[int, Path], variable: str, entry: str) -> None:
    port, certs = proxy
    exempt = f"metadata.google.internal,169.254.169.254,{entry}"
    [said] = bad(environment(port, certs / "ca-bundle.pem", **{variable: exempt}))
    assert f"{entry} bypasses the proxy" in said


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"STORAGE_EMULATOR_HOST": "http://127.0.0.1:9000"}, "STORAGE_EMULATOR_HOST is http://127.0.0.1:9000"),
        ({"TENSORSTORE_GCS_HTTP_URL": "http://127.0.0.1:9000"}, "without the proxy; unset it"),
        ({"FSSPEC_GS": '{"token": "anon"}'}, "gcsfs ignores https_proxy"),
        ({"FSSPEC_GS": "{"}, "gcsfs ignores https_proxy"),
        ({"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "true"}, "waits 90 s"),
        ({"HTTPS_PROXY": "http://127.0.0.1:1"}, "HTTPS_PROXY differs"),
    ],
)
def test_what_leads_a_client_around_or_holds_it_up_is_told(
    proxy: tuple[int, Path], variables: dict[str, str], said: str
) -> None:
    port, certs = proxy
    [found] = bad(environment(port, certs / "ca-bundle.pem", **variables))
    assert said in found


def test_a_storage_host_as_the_endpoint_leads_nowhere_else(proxy: tuple[int, Path]) -> None:
    port, certs = proxy
    assert bad(environment(port, certs / "ca-bundle.pem", STORAGE_EMULATOR_HOST=f"https://{HOST}")) == []


def test_what_ends_after_connect_is_no_way(tmp_path: Path, proxy: tuple[int, Path]) -> None:
    server = HttpServer(lambda _: Response(status=200))
    server.open()
    try:
        found = bad(environment(server.port, proxy[1] / "ca-bundle.pem"))
    finally:
        server.close()
    assert [line for line in found if "nothing answers TLS through" in line]


def test_nobody_there_is_told_once(proxy: tuple[int, Path]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found = bad(environment(taken.getsockname()[1], proxy[1] / "ca-bundle.pem"))
    assert len(found) == 1
    assert "nothing answers on" in found[0]
