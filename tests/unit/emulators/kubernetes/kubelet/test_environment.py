"""What a container's variables and commands become, and which of its values are paths of volumes."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.emulators.kubernetes.kubelet.environment import (
    Addresses,
    ConfigError,
    command,
    field_value,
    hostname,
    spec_variables,
    tpu_variables,
)
from bastion.emulators.kubernetes.kubelet.expansion import expand
from bastion.emulators.kubernetes.kubelet.volumes import make_folders, mounts, volume_folders

Obj = dict[str, Any]

ADDRESSES = Addresses(pod="127.100.7.2", node="10.0.0.5", job=("127.100.7.1", "127.100.7.2"))
POD: Obj = {
    "metadata": {
        "name": "b-x-1-slice-0-1-abcde",
        "namespace": "training",
        "uid": "a-uid",
        "labels": {"b": "2", "a": "1"},
        "annotations": {"batch.kubernetes.io/job-completion-index": "1"},
    },
    "spec": {"nodeName": "node-1", "serviceAccountName": "worker", "hostname": "b-x-1-slice-0-1"},
}


def no_object(kind: str, name: str) -> Obj | None:
    return None


# The cases of third_party/forked/golang/expansion/expand_test.go, by what they show.
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "a"),
        ("x$(A)y$(B)z", "xaybz"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$a"),
        ("$$$$(A)", "$$(A)"),
        ("$$", "$"),
        ("$", "$"),
        ("a$", "a$"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("$(A$(B))", "$(A$(B))"),
        ("$($(A)", "$($(A)"),
        ("$x$(A)", "$xa"),
        ("ä$(A)ö", "äaö"),
    ],
)
def test_expansion(text: str, expected: str) -> None:
    assert expand(text, {"A": "a", "B": "b"}) == expected


@given(st.text(alphabet=st.sampled_from("$(){}Aé \n")))
def test_a_text_with_every_dollar_doubled_survives(text: str) -> None:
    assert expand(text.replace("$", "$$"), {"A": "a"}) == text


def test_the_fields_of_a_pod() -> None:
    found = {path: field_value(POD, path, ADDRESSES) for path in ("metadata.name", "metadata.uid", "spec.nodeName")}
    assert found == {"metadata.name": "b-x-1-slice-0-1-abcde", "metadata.uid": "a-uid", "spec.nodeName": "node-1"}
    assert field_value(POD, "status.podIP", ADDRESSES) == "127.100.7.2"
    assert field_value(POD, "status.hostIP", ADDRESSES) == "10.0.0.5"
    assert field_value(POD, "metadata.labels['b']", ADDRESSES) == "2"
    assert field_value(POD, "metadata.labels['absent']", ADDRESSES) == ""
    assert field_value(POD, "metadata.labels", ADDRESSES) == 'a="1"\nb="2"'
    with pytest.raises(ConfigError, match=r"unsupported fieldPath: spec.volumes"):
        field_value(POD, "spec.volumes", ADDRESSES)


def test_a_variable_sees_those_before_it_only() -> None:
    env = [
        {"name": "LATER", "value": "$(INDEX)"},
        {"name": "INDEX", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
        {"name": "PEERS", "value": "job-$(INDEX)-0,job-$(INDEX)-1"},
        {"name": "EMPTY"},
        {"name": "WORKER", "value": "$(TPU_WORKER_ID)"},
    ]
    found = spec_variables(POD, {"env": env}, ADDRESSES, no_object, injected={"TPU_WORKER_ID": "1"})
    assert found == {
        "TPU_WORKER_ID": "1",
        "LATER": "$(INDEX)",
        "INDEX": "1",
        "PEERS": "job-1-0,job-1-1",
        "EMPTY": "",
        "WORKER": "1",
    }


def test_values_of_secrets_and_config_maps() -> None:
    objects = {
        ("secret", "s"): {"data": {"k": base64.b64encode(b"hidden").decode()}},
        ("configmap", "c"): {"data": {"k": "plain"}},
    }

    def variable(kind: str, name: str, key: str, **fields: Any) -> dict[str, str]:
        env = [{"name": "V", "valueFrom": {f"{kind}KeyRef": {"name": name, "key": key, **fields}}}]
        return spec_variables(POD, {"env": env}, ADDRESSES, lambda *of: objects.get(of))

    assert variable("secret", "s", "k") == {"V": "hidden"}
    assert variable("configMap", "c", "k") == {"V": "plain"}
    assert variable("configMap", "absent", "k", optional=True) == {}
    assert variable("configMap", "c", "absent", optional=True) == {}
    with pytest.raises(ConfigError, match='configmap "absent" not found'):
        variable("configMap", "absent", "k")
    with pytest.raises(ConfigError, match="couldn't find key absent in Secret training/s"):
        variable("secret", "s", "absent")


def test_gke_tells_tpu_containers_of_a_job_their_peers() -> None:
    container = {"resources": {"limits": {"google.com/tpu": "4"}}}
    assert tpu_variables(POD, container, ADDRESSES) == {
        "TPU_WORKER_HOSTNAMES": "127.100.7.1,127.100.7.2",
        "TPU_WORKER_ID": "1",
    }
    assert tpu_variables(POD, {}, ADDRESSES) == {}
    assert tpu_variables(POD, container, Addresses(pod="127.100.7.1", node="", job=("127.100.7.1",))) == {}
    assert tpu_variables({"metadata": {}}, container, ADDRESSES) == {}


def test_commands_and_arguments_are_expanded() -> None:
    container = {"command": ["/bin/bash", "-c", "echo $$A $(A)"], "args": ["$(B)"]}
    assert command(container, {"A": "a"}) == ("/bin/bash", "-c", "echo $A a", "$(B)")


def test_the_host_name_is_the_specs_or_begins_the_pods() -> None:
    assert hostname(POD) == "b-x-1-slice-0-1"
    assert hostname({"metadata": {"name": f"{'x' * 62}-yz"}, "spec": {}}) == "x" * 62


def test_values_below_a_mount_path_are_rewritten_and_others_stay(tmp_path: Path) -> None:
    pod = {"spec": {"volumes": [{"name": "bastion"}, {"name": "shm"}, {"name": "nested"}]}}
    container = {
        "volumeMounts": [
            {"name": "bastion", "mountPath": "/bastion/"},
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "nested", "mountPath": "/bastion/nested", "subPath": "part"},
        ]
    }
    volumes = volume_folders(pod, tmp_path)
    inside = mounts(container, volumes, tmp_path / "message")
    expected = {
        "/bastion": f"{tmp_path}/bastion",
        "/bastion/state": f"{tmp_path}/bastion/state",
        "/bastion/nested/x": f"{tmp_path}/nested/part/x",
        "/dev/shm": f"{tmp_path}/shm",
        "/dev/termination-log": f"{tmp_path}/message",
        "/bastions": "/bastions",
        "echo /bastion": "echo /bastion",
        "/bin/bash": "/bin/bash",
        "": "",
    }
    assert {value: inside.rewrite(value) for value in expected} == expected
    make_folders(container, volumes)
    assert (tmp_path / "nested" / "part").is_dir()


def test_a_folder_of_the_node_that_the_pod_wants_created_is_the_machines_own(tmp_path: Path) -> None:
    wanted = {"name": "cache", "hostPath": {"path": str(tmp_path / "ssd"), "type": "DirectoryOrCreate"}}
    brought = {"name": "driver", "hostPath": {"path": "/var/lib/driver"}}
    volumes = volume_folders({"spec": {"volumes": [wanted, brought]}}, tmp_path / "pod")
    assert volumes == {"cache": tmp_path / "ssd", "driver": tmp_path / "pod" / "driver"}


def test_another_termination_message_path(tmp_path: Path) -> None:
    inside = mounts({"terminationMessagePath": "/tmp/why"}, {}, tmp_path / "message")
    assert inside.rewrite("/tmp/why") == f"{tmp_path}/message"
    assert inside.rewrite("/dev/termination-log") == "/dev/termination-log"
