"""Credential plugins of a kubeconfig: real programs that give tokens, fail, hang, and are asked again in time."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion.adapters.kubernetes import credentials
from bastion.adapters.kubernetes.credentials import open_session
from bastion.core.errors import CredentialsRefused, ProvisionerUnavailable
from bastion.core.model.clusters import ClusterSettings
from bastion.emulators.kubernetes.apiserver.faults import Fault
from tests.support.cluster_api import PODS, Cluster, pod, running
from tests.support.waiting import until

pytest.importorskip("kubernetes.config", reason="the extra `kubernetes` is not installed")

API_VERSION = "client.authentication.k8s.io/v1"


class _Plugin:
    """A program whose every start leaves a line in `starts`, and which prints `answer`."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "a-plugin"
        self.answer = folder / "answer"
        self._starts = folder / "starts"
        self.write(f'cat "{self.answer}"')

    def write(self, script: str) -> None:
        self.file.write_text(f'#!/bin/sh\necho start >> "{self._starts}"\n{script}\n')
        self.file.chmod(self.file.stat().st_mode | stat.S_IXUSR)

    def gives(self, token: str, **status: str) -> None:
        credential = {"apiVersion": API_VERSION, "kind": "ExecCredential", "status": {"token": token} | status}
        self.answer.write_text(json.dumps(credential))

    @property
    def starts(self) -> int:
        return len(self._starts.read_text().splitlines()) if self._starts.exists() else 0


@pytest.fixture
def plugin(tmp_path: Path) -> _Plugin:
    return _Plugin(tmp_path)


def _settings(folder: Path, plugin: _Plugin, server: str = "https://127.0.0.1:1", ca_file: str = "") -> ClusterSettings:
    cluster: dict[str, Any] = {"server": server} | ({"certificate-authority": ca_file} if ca_file else {})
    execute = {"command": str(plugin.file), "apiVersion": API_VERSION, "interactiveMode": "Never"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"exec": execute}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file = folder / "kubeconfig"
    file.write_text(json.dumps(document))
    return ClusterSettings(name="west", kubeconfig=str(file))


def test_a_plugins_token_is_used_until_shortly_before_it_expires(tmp_path: Path, plugin: _Plugin) -> None:
    plugin.gives("first", expirationTimestamp="2099-01-01T00:00:00Z")
    session = open_session(_settings(tmp_path, plugin))
    assert [session.headers() for _ in range(3)] == [{"Authorization": "Bearer first"}] * 3
    assert plugin.starts == 1


def test_a_plugin_is_asked_again_once_its_token_has_expired(tmp_path: Path, plugin: _Plugin) -> None:
    plugin.gives("first", expirationTimestamp="2020-01-01T00:00:00Z")
    session = open_session(_settings(tmp_path, plugin))
    plugin.gives("second", expirationTimestamp="2099-01-01T00:00:00Z")
    assert session.headers() == {"Authorization": "Bearer second"}
    assert session.headers() == {"Authorization": "Bearer second"}
    assert plugin.starts == 2


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo not logged in >&2; exit 1", "not logged in"),
        ("echo garbage", "failed to decode"),
        ("echo '{}'", "malformed response"),
        ("exit 0", "failed to decode"),
    ],
)
def test_a_plugin_that_fails_is_an_error_with_its_words(
    tmp_path: Path, plugin: _Plugin, script: str, words: str
) -> None:
    plugin.write(script)
    with pytest.raises(ProvisionerUnavailable, match=f"gave no credentials.*{words}.*kubectl"):
        open_session(_settings(tmp_path, plugin))


def test_a_plugin_that_hangs_costs_its_limit_and_one_process(
    tmp_path: Path, plugin: _Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "PLUGIN_SECONDS", 0.3)
    released = tmp_path / "released"
    os.mkfifo(released)
    plugin.gives("first", expirationTimestamp="2020-01-01T00:00:00Z")
    session = open_session(_settings(tmp_path, plugin))
    plugin.write(f'read line < "{released}"; cat "{plugin.answer}"')
    failures: list[str] = []

    def ask() -> None:
        try:
            session.headers()
        except ProvisionerUnavailable as error:
            failures.append(str(error))

    begun = time.monotonic()
    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ask()
    assert time.monotonic() - begun < 3.0
    assert len(failures) == 6
    assert all("did not answer within 0 s" in words for words in failures)
    assert plugin.starts == 2
    plugin.gives("second", expirationTimestamp="2099-01-01T00:00:00Z")
    released.write_text("go\n")
    until(lambda: _header(session) == "Bearer second", 10.0)


def _header(session: credentials.Session) -> str:
    try:
        return session.headers()["Authorization"]
    except ProvisionerUnavailable:
        return ""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path) as found:
        yield found


def test_a_token_without_an_expiry_is_replaced_once_the_server_refuses_it(
    cluster: Cluster, tmp_path: Path, plugin: _Plugin
) -> None:
    address = cluster.server.address
    settings = _settings(tmp_path, plugin, address.server, address.ca_file)
    plugin.gives("revoked")
    api = cluster.api(kubeconfig=settings.kubeconfig, server="", token_file="", ca_file="")
    with pytest.raises(CredentialsRefused):
        api.list(PODS)
    # Loaded and refused a moment ago: not started for each request.
    with pytest.raises(CredentialsRefused):
        api.list(PODS)
    assert plugin.starts == 1


def test_a_revoked_token_is_replaced_without_an_error(
    cluster: Cluster, tmp_path: Path, plugin: _Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bastion.adapters.kubernetes.transport._RELOAD_SECONDS", 0.0)
    address = cluster.server.address
    settings = _settings(tmp_path, plugin, address.server, address.ca_file)
    plugin.gives("revoked")
    # The first start prints a token that is refused, the next one a good one.
    plugin.write(f'cat "{plugin.answer}"; cp "{tmp_path}/next" "{plugin.answer}"')
    good = plugin.answer.read_text().replace("revoked", address.token)
    (tmp_path / "next").write_text(good)
    api = cluster.api(kubeconfig=settings.kubeconfig, server="", token_file="", ca_file="")
    api.create(PODS, pod("a"))
    assert plugin.starts == 2


def test_a_plugin_that_fails_is_not_started_for_each_request(cluster: Cluster, tmp_path: Path, plugin: _Plugin) -> None:
    plugin.write("exit 1")
    settings = _settings(tmp_path, plugin)
    api = cluster.api(kubeconfig=settings.kubeconfig, server="", token_file="", ca_file="")
    for _ in range(3):
        with pytest.raises(ProvisionerUnavailable, match="gave no credentials"):
            api.list(PODS)
    assert plugin.starts == 1


def test_a_certificate_file_of_the_library_that_was_swept_is_written_again(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bastion.adapters.kubernetes.transport._RELOAD_SECONDS", 0.0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    kubeconfig = cluster.server.state_dir / "kubeconfig"
    api = cluster.api(kubeconfig=str(kubeconfig), server="", token_file="", ca_file="")
    assert api.list(PODS).items == []
    swept = list((tmp_path / "temporary").iterdir())
    assert len(swept) == 1
    swept[0].unlink()
    cluster.faults = [("POST", Fault(cut_reply=True))]
    # The open connection is lost with this, and a new one needs the file.
    with pytest.raises(ProvisionerUnavailable):
        api.create(PODS, pod("a"))
    with pytest.raises(ProvisionerUnavailable, match="cannot be reached"):
        api.list(PODS)
    assert len(api.list(PODS).items) == 1
