"""Each way to a cluster, and what is said where it does not lead there. No plugin is started here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bastion.adapters.kubernetes.credentials import Session, open_session
from bastion.core.errors import ProvisionerUnavailable
from bastion.core.model.clusters import ClusterSettings

# Imported here: urllib3 opens a socket while it is imported, to see whether the machine has IPv6.
kubernetes = pytest.importorskip("kubernetes.config", reason="the extra `kubernetes` is not installed")
yaml = pytest.importorskip("yaml", reason="the extra `kubernetes` is not installed")

SERVER = "https://10.0.0.2"
KUBECONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": SERVER}}],
    "users": [{"name": "u", "user": {"token": "secret"}}, {"name": "none", "user": {}}],
    "contexts": [
        {"name": "one", "context": {"cluster": "c", "user": "u"}},
        {"name": "two", "context": {"cluster": "c", "user": "none"}},
        {"name": "lost", "context": {"cluster": "gone", "user": "u"}},
    ],
    "current-context": "one",
}


def _kubeconfig(tmp_path: Path, **changes: Any) -> Path:
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(KUBECONFIG | changes))
    return file


def _refusal(settings: ClusterSettings, **more: Any) -> str:
    with pytest.raises(ProvisionerUnavailable) as raised:
        open_session(settings, **more)
    words = str(raised.value)
    assert words.startswith("cluster west: ")
    assert "secret" not in words
    return words


def _header(session: Session) -> str:
    return session.headers().get("Authorization", "")


def test_a_server_with_a_token_file_is_asked_with_that_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    session = open_session(ClusterSettings(name="west", server=f"{SERVER}/", token_file=str(token)))
    assert session.server == SERVER
    assert _header(session) == "Bearer first"


def test_a_token_file_that_is_rotated_is_read_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    session = open_session(ClusterSettings(name="west", server=SERVER, token_file=str(token)))
    replacement = tmp_path / "next"
    replacement.write_text("second")
    replacement.replace(token)
    assert _header(session) == "Bearer second"


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"\xff\xfe", b"a\nb"])
def test_a_token_file_without_a_token_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    token = tmp_path / "token"
    token.write_bytes(content)
    assert f"token_file {token}" in _refusal(ClusterSettings(name="west", server=SERVER, token_file=str(token)))


def test_a_token_file_that_goes_away_is_named_with_the_next_request(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    session = open_session(ClusterSettings(name="west", server=SERVER, token_file=str(token)))
    token.unlink()
    with pytest.raises(ProvisionerUnavailable, match="cannot read token_file"):
        session.headers()


def test_a_ca_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "ca.pem"
    assert f"ca_file {gone} does not exist" in _refusal(ClusterSettings(name="west", server=SERVER, ca_file=str(gone)))


def test_a_token_is_not_sent_in_clear_text_to_another_machine(tmp_path: Path) -> None:
    assert "https://" in _refusal(ClusterSettings(name="west", server="http://10.0.0.2"))
    assert open_session(ClusterSettings(name="west", server="http://127.0.0.1:8001")).headers() == {}


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    import urllib3
    from kubernetes.client import Configuration

    monkeypatch.setenv("HTTPS_PROXY", "http://10.9.9.9:3128")
    monkeypatch.setenv("https_proxy", "http://10.9.9.9:3128")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    if Configuration(host=SERVER).proxy is None:
        pytest.skip("this release of the client ignores the environment")
    assert not isinstance(
        open_session(ClusterSettings(name="west", server="https://127.0.0.1:6443")).pool, urllib3.ProxyManager
    )
    assert isinstance(open_session(ClusterSettings(name="west", server=SERVER)).pool, urllib3.ProxyManager)


@pytest.mark.parametrize(("context", "header"), [("", "Bearer secret"), ("one", "Bearer secret"), ("two", "")])
def test_a_kubeconfig_is_read_in_its_context(tmp_path: Path, context: str, header: str) -> None:
    session = open_session(ClusterSettings(name="west", kubeconfig=str(_kubeconfig(tmp_path)), context=context))
    assert session.server == SERVER
    assert _header(session) == header


def test_a_kubeconfig_that_is_gone_is_named_with_how_to_make_one(tmp_path: Path) -> None:
    words = _refusal(ClusterSettings(name="west", kubeconfig=str(tmp_path / "gone")))
    assert "does not exist" in words
    assert "get-credentials" in words
    words = _refusal(ClusterSettings(name="west", kubeconfig=str(tmp_path)))
    assert f"kubeconfig {tmp_path} is not a file" in words


def test_an_unknown_context_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    words = _refusal(ClusterSettings(name="west", kubeconfig=str(_kubeconfig(tmp_path)), context="tow"))
    assert "no context 'tow'" in words
    assert "one, two, lost" in words


def test_a_kubeconfig_without_a_current_context_is_said(tmp_path: Path) -> None:
    file = _kubeconfig(tmp_path, **{"current-context": ""})
    assert "names no current context" in _refusal(ClusterSettings(name="west", kubeconfig=str(file)))


@pytest.mark.parametrize("text", ["", "{", "[]", "a: 1", "contexts: 3", "\x00", "contexts: [{}]", "just words"])
def test_a_damaged_kubeconfig_is_an_error_in_words(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    said = f"{file} names no current context" if text == "a: 1" else f"{file} is not a kubeconfig ("
    assert said in _refusal(ClusterSettings(name="west", kubeconfig=str(file)))


def test_a_context_whose_cluster_is_missing_is_an_error_in_words(tmp_path: Path) -> None:
    words = _refusal(ClusterSettings(name="west", kubeconfig=str(_kubeconfig(tmp_path)), context="lost"))
    assert "gone" in words


def test_a_plugin_that_is_not_installed_is_named(tmp_path: Path) -> None:
    users = [{"name": "u", "user": {"exec": {"command": "no-such-plugin", "apiVersion": "v1"}}}]
    words = _refusal(ClusterSettings(name="west", kubeconfig=str(_kubeconfig(tmp_path, users=users))))
    assert "'no-such-plugin', which is not installed" in words


def _account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("pods-own")
    (tmp_path / "ca.crt").write_text("a certificate")
    return tmp_path


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_without_server_and_kubeconfig_the_pods_own_account_is_used(tmp_path: Path) -> None:
    session = open_session(ClusterSettings(name="west"), account=_account(tmp_path), environ=POD)
    assert session.server == "https://10.0.0.1:443"
    assert _header(session).lower() == "bearer pods-own"


def test_outside_a_cluster_something_must_be_named(tmp_path: Path) -> None:
    assert "neither `server` nor `kubeconfig`" in _refusal(ClusterSettings(name="west"), environ={})
    (tmp_path / "empty").mkdir()
    words = _refusal(ClusterSettings(name="west"), account=tmp_path / "empty", environ=POD)
    assert "token file does not exist" in words


def test_a_missing_client_library_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)
    assert "pip install 'bastion[kubernetes]'" in _refusal(ClusterSettings(name="west", server=SERVER))
