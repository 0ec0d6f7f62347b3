"""The proxy's authority: what clients come to trust, what they do not, and where its key lies."""

from __future__ import annotations

import datetime
import shutil
import socket
import ssl
import threading
from pathlib import Path

import certifi
import pytest

from bastion.core.errors import Refused
from bastion.net.http1 import HttpServer, Request, Response
from bastion.net.tls import Authority, new_key
from bastion.proxy.service.roots import roots, trusting
from bastion.proxy.serving.authority import BUNDLE_FILE, CA_FILE, ProxyAuthority

NOW = datetime.datetime.now(datetime.timezone.utc)
HOST = "storage.googleapis.com"


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """Fails as the client's verification does."""
    near, far = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(far, server_side=True).close()
        except OSError:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    near.settimeout(10)
    try:
        client.wrap_socket(near, server_hostname=name).close()
    finally:
        near.close()
        thread.join()


def _strict(pem: bytes) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=pem.decode())
    # What newer Python versions ask of a certificate by default.
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


@pytest.mark.parametrize("host", [HOST, "a.b.storage.googleapis.com", "storage.us-east1.rep.googleapis.com"])
def test_who_trusts_the_authority_takes_the_proxy_for_the_host(tmp_path: Path, host: str) -> None:
    authority = ProxyAuthority(tmp_path)
    context = authority.context(host)
    _handshake(context, _strict(authority.public_pem), host)
    assert authority.context(host) is context
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(context, _strict(authority.public_pem), "www.googleapis.com")
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(context, ssl.create_default_context(), host)


@pytest.mark.parametrize("host", ["example.com", "googleapis.com.example.com"])
def test_nobody_believes_the_authority_about_other_sites(tmp_path: Path, host: str) -> None:
    authority = ProxyAuthority(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(authority.context(host), _strict(authority.public_pem), host)


def test_the_key_of_a_host_is_in_no_file(tmp_path: Path) -> None:
    authority = ProxyAuthority(tmp_path / "state")
    shutil.rmtree(tmp_path / "state")
    _handshake(authority.context(HOST), _strict(authority.public_pem), HOST)
    assert not (tmp_path / "state").exists()


def test_the_key_is_private_and_nothing_else_of_it_stays(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    authority = ProxyAuthority(folder)
    authority.context(HOST)
    authority.publish(tmp_path / "public")
    assert folder.stat().st_mode & 0o777 == 0o700
    (kept,) = folder.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE KEY" in kept.read_bytes()
    assert {file.name for file in (tmp_path / "public").iterdir()} == {CA_FILE, BUNDLE_FILE}
    for file in (tmp_path / "public").iterdir():
        assert b"PRIVATE" not in file.read_bytes()
        assert file.stat().st_mode & 0o777 == 0o644


def test_a_restart_keeps_the_authority_until_it_ends_soon(tmp_path: Path) -> None:
    first = ProxyAuthority(tmp_path).public_pem
    assert ProxyAuthority(tmp_path).public_pem == first
    assert ProxyAuthority(tmp_path, now=lambda: NOW + datetime.timedelta(days=700)).public_pem == first
    assert ProxyAuthority(tmp_path, now=lambda: NOW + datetime.timedelta(days=780)).public_pem != first


@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nnone\n-----END CERTIFICATE-----\n"])
def test_what_is_broken_is_made_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "authority.pem").write_bytes(content)
    (tmp_path / "authority.pem").chmod(0o600)
    _strict(ProxyAuthority(tmp_path).public_pem)


def test_a_certificate_beside_the_key_of_another_is_made_anew(tmp_path: Path) -> None:
    life = datetime.timedelta(days=800)
    one, other = (Authority.new("x", now=NOW, lifetime=life) for _ in range(2))
    mixed = one.public_pem + other.private_pem.replace(other.public_pem, b"")
    (tmp_path / "authority.pem").write_bytes(mixed)
    (tmp_path / "authority.pem").chmod(0o600)
    assert ProxyAuthority(tmp_path).public_pem != one.public_pem


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    ProxyAuthority(tmp_path)
    (tmp_path / "authority.pem").chmod(0o644)
    with pytest.raises(Refused, match="others own or can read"):
        ProxyAuthority(tmp_path)


def test_a_key_that_lies_elsewhere_is_refused(tmp_path: Path) -> None:
    ProxyAuthority(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "authority.pem").symlink_to(tmp_path / "a" / "authority.pem")
    with pytest.raises(Refused, match="cannot store"):
        ProxyAuthority(tmp_path / "b")


def test_a_hosts_certificate_is_renewed_before_it_ends(tmp_path: Path) -> None:
    now = NOW
    authority = ProxyAuthority(tmp_path, now=lambda: now)
    first = authority.context(HOST)
    now += datetime.timedelta(days=19)
    assert authority.context(HOST) is first
    now += datetime.timedelta(days=2)
    assert authority.context(HOST) is not first


def test_made_up_names_take_no_more_memory_than_a_few(tmp_path: Path) -> None:
    authority = ProxyAuthority(tmp_path)
    first = authority.context(HOST)
    for number in range(300):
        authority.context(f"b{number}.{HOST}")
    assert authority.context(HOST) is not first


def test_the_bundle_holds_the_machines_authorities_and_ours_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = ProxyAuthority(tmp_path / "state")
    for _ in range(2):
        authority.publish(tmp_path / "public")
        bundle = (tmp_path / "public" / BUNDLE_FILE).read_bytes()
        assert bundle.count(authority.public_pem) == 1
        assert bundle.count(b"BEGIN CERTIFICATE") > 20
        # As where the proxy inherits what it told its clients.
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "public" / BUNDLE_FILE))
    assert (tmp_path / "public" / CA_FILE).read_bytes() == authority.public_pem
    context = ssl.create_default_context(cafile=tmp_path / "public" / BUNDLE_FILE)
    _handshake(authority.context(HOST), context, HOST)


def test_what_cannot_be_published_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="PROXY_CERT_PATH"):
        ProxyAuthority(tmp_path / "state").publish(tmp_path / "file")


def test_a_machine_without_certificates_gets_those_of_certifi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = ssl.get_default_verify_paths()._replace(cafile=None, capath=None)
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: nothing)
    assert roots().strip() == Path(certifi.where()).read_bytes().strip()
    assert trusting().cert_store_stats()["x509_ca"] > 20


def test_a_folder_of_certificates_is_read_by_their_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("0a1b2c3d.0", "README", "0a1b2c3d.r0"):
        (tmp_path / name).write_text(name)
    folder = ssl.get_default_verify_paths()._replace(cafile=None, capath=str(tmp_path))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: folder)
    assert roots() == b"0a1b2c3d.0\n"
    (tmp_path / "ca-certificates.crt").write_text("all")
    assert roots() == b"all\n"


def test_requests_and_urllib_take_the_bundle(tmp_path: Path) -> None:
    import requests

    authority = ProxyAuthority(tmp_path / "state")
    authority.publish(tmp_path / "public")

    def answer(request: Request) -> Response:
        return Response(status=200, body=request.path.encode())

    server = HttpServer(answer, tls=authority.context(HOST))
    server.open()
    with requests.Session() as session, pytest.MonkeyPatch.context() as patch:
        find = socket.getaddrinfo
        patch.setattr(socket, "getaddrinfo", lambda _host, *rest: find("127.0.0.1", *rest))
        session.trust_env = False
        url = f"https://{HOST}:{server.port}/a"
        assert session.get(url, verify=str(tmp_path / "public" / BUNDLE_FILE), timeout=10).text == "/a"
        with pytest.raises(requests.exceptions.SSLError):
            session.get(url, timeout=10)
    server.close(0.0)


def test_a_server_is_signed_for_no_longer_than_the_authority_lasts() -> None:
    authority = Authority.new("x", now=NOW, lifetime=datetime.timedelta(days=5))
    server = authority.sign("y", ["h"], key=new_key(), now=NOW, lifetime=datetime.timedelta(days=30))
    assert server.certificate.not_valid_after_utc == authority.certificate.not_valid_after_utc
