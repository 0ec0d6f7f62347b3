"""`bastion quota export`: a file or the quota file in force, with settings from a file or the bastion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bastion.client import yaml_writer
from bastion.client.quota import kueue_drift
from bastion.wiring.daemon import node_label
from bastion.wiring.roots import parse_root
from tests.support import kueue_exports
from tests.support.kueue_exports import SETTINGS, SMALL

TABLES = SETTINGS.format(provider="gke")


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "new.config").write_text(SMALL)
    (tmp_path / "daemon.toml").write_text(TABLES)
    return "new.config", "--settings=daemon.toml"


def expected(root: str) -> str:
    label = node_label(parse_root(root))
    found = kueue_exports.exported("small").objects
    for each in found:
        each["metadata"]["labels"]["bastion-managed"] = label
    return yaml_writer.documents(found)


def test_a_file_and_settings_need_no_bucket(run, files: tuple[str, str]) -> None:
    done = run("quota", "export", *files, "--root=gs://no-such-bucket/team-bastion", code=0)
    assert done.out == expected("gs://no-such-bucket/team-bastion")
    assert done.err == (
        "bastion: users of a project are not balanced: Kueue orders its jobs by priority and age, whatever "
        "half_life_hours and user_weights say\n"
    )


def test_json_is_one_list_that_kubectl_takes(run, files: tuple[str, str]) -> None:
    done = run("quota", "export", *files, "--format=kueue", "--output=json", code=0)
    document = json.loads(done.out)
    assert (document["apiVersion"], document["kind"]) == ("v1", "List")
    assert {each["apiVersion"] for each in document["items"]} == {"kueue.x-k8s.io/v1beta2"}


def test_without_files_they_are_those_of_the_bastion(run, bastion) -> None:
    bastion.write_quota(SMALL.encode())
    bastion.write_settings(TABLES.encode())
    bastion.settle(3)
    done = run("quota", "export", code=0)
    assert done.out.count("kind: ClusterQueue") == 2
    # What is in force counts, not what replaced it and is not valid.
    bastion.write_quota(b"v4 = ")
    assert run("quota", "export", code=64).err.startswith("bastion: the quota file ")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["new.config"], "there are no operator settings config/daemon.toml, which say what a cluster has"),
        (["new.config", "--settings=none.toml"], "cannot read the operator settings none.toml: No such file"),
        (["new.config", "--settings=new.config"], "new.config is not valid: "),
        (["new.config", "--settings=daemon.toml", "--cluster=west"], "have no cluster west (clusters: training)"),
        (["new.config", "--settings=daemon.toml", "--kubeconfig=x"], "--kubeconfig and --context require --check"),
        (["new.config", "--settings=daemon.toml", "--check", "--context=x"], "--context requires --kubeconfig"),
        (["daemon.toml", "--settings=daemon.toml"], "bastion: daemon.toml: "),
    ],
)
def test_what_is_missing_or_wrong_is_said(run, bastion, files: tuple[str, str], argv: list[str], said: str) -> None:
    done = run("quota", "export", *argv, code=64)
    assert said in done.err
    assert done.out == ""


def test_a_check_says_what_differs_and_exits_with_1(
    run, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bastion.cli.quota import export

    root = "--root=gs://no-such-bucket/team-bastion"
    wanted = json.loads(run("quota", "export", *files, root, "--output=json", code=0).out)["items"]
    monkeypatch.setattr(export, "_objects", lambda _cluster: wanted)
    done = run("quota", "export", *files, root, "--check", code=0)
    assert (done.out, done.err) == ("", f"cluster training has all {len(wanted)} objects as the quota file says\n")
    present = json.loads(json.dumps(wanted))
    queue = next(each for each in present if each["kind"] == "ClusterQueue")
    queue["spec"]["stopPolicy"] = "HoldAndDrain"
    monkeypatch.setattr(export, "_objects", lambda _cluster: present[1:])
    done = run("quota", "export", *files, root, "--check", code=1)
    assert done.out == (
        "ResourceFlavor team-bastion-v4: missing\n"
        "ClusterQueue bastion-product: spec.stopPolicy is HoldAndDrain; the quota file says None\n"
    )
    assert done.err == "bastion: apply the export: bastion quota export | kubectl apply -f -\n"
    document = json.loads(run("quota", "export", *files, root, "--check", "--output=json", code=1).out)
    assert (document["cluster"], document["objects"]) == ("training", len(wanted))
    assert [(each["kind"], each["field"]) for each in document["differences"]] == [
        ("ResourceFlavor", None),
        ("ClusterQueue", "spec.stopPolicy"),
    ]
    assert kueue_drift.ABSENT is None
