"""`bastion quota export --check` against a cluster: what was applied, what was changed, and another cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="the extra `kubernetes` is not installed")

from bastion.cli.main import main
from bastion.emulators.kubernetes.client import ApiClient
from bastion.emulators.kubernetes.controllers.api_objects import KINDS
from tests.support import cluster_api
from tests.support.emulated_cluster import uid_of
from tests.support.kueue_exports import EVERY_RULE, SETTINGS

_QUEUES = KINDS["kueue.x-k8s.io/v1beta2", "ClusterQueue"]


def test_what_was_applied_is_no_drift_and_each_change_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "quota.toml").write_text(EVERY_RULE)
    settings = tmp_path / "daemon.toml"
    argv = [
        "quota",
        "export",
        str(tmp_path / "quota.toml"),
        f"--settings={settings}",
        f"--root={tmp_path}/team-bastion",
    ]
    with cluster_api.running(tmp_path, kueue=True) as cluster:
        people = ApiClient.connect(cluster.server.address)
        uid, where = uid_of(people), cluster.settings()
        address = f'server = "{where.server}"\nca_file = "{where.ca_file}"\ntoken_file = "{where.token_file}"'
        text = SETTINGS.format(provider="gke").replace("5f0c5f0c-0000-4000-8000-000000000000", uid)
        settings.write_text(text.replace("agent_image", f"{address}\nagent_image"))
        assert main([*argv, "--output=json"]) == 0
        items = json.loads(capsys.readouterr().out)["items"]

        assert main([*argv, "--check"]) == 1
        assert capsys.readouterr().out == "".join(
            f"{each['kind']} {each['metadata']['name']}: missing\n" for each in items
        )
        people.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training"}})
        for each in items:
            people.create(KINDS[each["apiVersion"], each["kind"]].path("training"), each)
        assert main([*argv, "--check"]) == 0
        assert capsys.readouterr().out == ""

        people.patch(_QUEUES.path("", "bastion-product"), {"spec": {"stopPolicy": "None"}})
        old = next(each for each in items if each["kind"] == "ClusterQueue")
        people.create(_QUEUES.path(""), {**old, "metadata": {**old["metadata"], "name": "bastion-former"}})
        assert main([*argv, "--check"]) == 1
        assert capsys.readouterr().out == (
            "ClusterQueue bastion-product: spec.stopPolicy is None; the quota file says Hold\n"
            "ClusterQueue bastion-former: not in the export; delete it by hand\n"
        )

        settings.write_text(settings.read_text().replace(uid, "00000000-0000-0000-0000-000000000000"))
        assert main([*argv, "--check"]) == 75
        assert "belongs to another cluster" in capsys.readouterr().err
        people.close()

    # The server is down: what it waits for stands there first, and nothing will be tried again.
    assert main([*argv, "--check"]) == 75
    first, error = capsys.readouterr().err.splitlines()
    assert first == "bastion: reading the objects of cluster training"
    assert "cannot be reached" in error
    assert error.endswith("; correct the address, or run the command again")
