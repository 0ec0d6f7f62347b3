"""Job specs: what is read from the ancestor's clients, what is refused, and how the refusal reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import InvalidSpec, Refused, UnknownInstanceType
from bastion.core.model import job_spec
from bastion.core.model.job_spec import JobOptions

# Written by AXLearn's own serializer.
ANCESTOR = (
    '{"version": 1, "name": "job-1", "command": "echo hi", "cleanup_command": null, "env_vars": null, "metadata": '
    '{"user_id": "alice", "project_id": "team", "creation_time": "2026-01-02 03:04:05.000006", "resources": {"v4": 8}, '
    '"priority": 3, "job_id": "1", "version": null, "scaling_specs": null}}'
)


def document(**changes: Any) -> dict[str, Any]:
    spec = json.loads(ANCESTOR)
    for path, value in changes.items():
        target = spec
        *parents, last = path.split("__")
        for part in parents:
            target = target[part]
        target[last] = value
    return spec


def parse(spec: Any, name: str = "job-1") -> job_spec.JobSpec:
    data = spec if isinstance(spec, bytes) else json.dumps(spec).encode()
    return job_spec.parse(data, name=name, bastion="team-bastion")


def test_a_spec_of_the_ancestors_serializer_is_read_field_by_field() -> None:
    spec = parse(ANCESTOR.encode())
    assert (spec.command, spec.user_id, spec.project_id, spec.priority) == ("echo hi", "alice", "team", 3)
    assert spec.resources == {"v4": 8}
    assert spec.cleanup_command is None
    assert spec.env_vars == {}
    assert spec.runner is None


def test_a_spec_round_trips_with_its_unknown_fields() -> None:
    spec = parse(document(futures={"x": [1]}, metadata__colour="red"))
    assert json.loads(spec.to_bytes()) == document(futures={"x": [1]}, metadata__colour="red")


def test_a_new_spec_has_every_field_that_the_ancestors_clients_read() -> None:
    spec = job_spec.new(
        name="j",
        bastion="b-bastion",
        command="true",
        user_id="u",
        project_id="p",
        now=0,
        options=JobOptions(instance_type="tpu-v4-32", num_replicas=2),
    )
    written = json.loads(spec.to_bytes())
    assert set(written["metadata"]) >= {"user_id", "project_id", "creation_time", "resources", "priority", "job_id"}
    assert written["metadata"]["resources"] == {"v4": 64}
    assert written["metadata"]["creation_time"] == "1970-01-01 00:00:00.000000"
    assert {"version", "name", "command", "cleanup_command", "env_vars"} <= set(written)
    assert spec.runner is not None
    assert spec.hosts == 8


def test_scaling_specs_turn_resources_into_the_guaranteed_minimum() -> None:
    scaling = [{"min_replicas": 2, "max_replicas": 4, "resources_per_replica": {"v4": 16}, "init_replicas": None}]
    assert parse(document(metadata__scaling_specs=scaling)).resources == {"v4": 32}


def test_a_creation_time_without_fraction_is_what_python_writes_for_a_whole_second() -> None:
    assert parse(document(metadata__creation_time="2026-01-02 03:04:05")).creation_time == "2026-01-02 03:04:05"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "version"),
        ({"version": True}, "version"),
        ({"name": "other"}, "make them equal"),
        ({"command": ""}, "command"),
        ({"command": "  \n"}, "blank"),
        ({"command": "a\x00b"}, "command"),
        ({"env_vars": {"A=B": "x"}}, "env_vars"),
        ({"env_vars": {"A": 1}}, "env_vars"),
        ({"env_vars": {f"A{i}": "x" for i in range(limits.SPEC_MAX_ENV_VARS + 1)}}, "env_vars"),
        ({"metadata__resources": {"v4": -8}}, "resources"),
        ({"metadata__resources": {"v4": 0}}, "resources"),
        ({"metadata__resources": {"v4": 10**9}}, "resources"),
        ({"metadata__resources": {"v4": 8.0}}, "resources"),
        ({"metadata__resources": {"v4": True}}, "resources"),
        ({"metadata__resources": {"v4": "8"}}, "resources"),
        ({"metadata__resources": {f"t{i}": 1 for i in range(limits.RESOURCE_TYPES_MAX + 1)}}, "resources"),
        ({"metadata__priority": 0}, "priority"),
        ({"metadata__priority": 6}, "priority"),
        ({"metadata__user_id": ""}, "user_id"),
        ({"metadata__user_id": "a\x1b[2J"}, "user_id"),
        ({"metadata__project_id": None}, "project_id"),
        ({"metadata__creation_time": "yesterday"}, "creation_time"),
        (
            {"metadata__scaling_specs": [{"min_replicas": 3, "max_replicas": 1, "resources_per_replica": {}}]},
            "must be at least",
        ),
        ({"runner": {"kind": "gke", "instance_type": "tpu-v4-8"}}, "runner.kind"),
        ({"runner": {"kind": "tpu", "instance_type": "tpu-v4-32"}}, "needs {'v4': 32}"),
        ({"runner": {"kind": "gpu", "instance_type": "tpu-v4-8"}}, "runner.kind is 'gpu', but tpu-v4-8 needs 'tpu'"),
        ({"runner": {"kind": "tpu", "instance_type": "gpu-l4-1"}}, "runner.kind is 'tpu', but gpu-l4-1 needs 'gpu'"),
    ],
)
def test_a_spec_that_breaks_a_rule_is_refused_with_the_field_at_fault(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        parse(document(**changes))
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runner": "tpu"}, "runner: must be an object: {...}"),
        ({"runner__inputs": "s3://data/x"}, "runner.inputs: must be a list: [...]"),
        ({"runner__inputs": ["s3://data/x:x"]}, "runner.inputs.0: must be an object: {...}"),
        ({"runner__inputs": [{"url": "s3://data/x"}]}, "runner.inputs.0.dir: is missing"),
        ({"runner__inputs": [{"url": 3, "dir": "x"}]}, 'runner.inputs.0.url: must be a string: "..."'),
        ({"runner__inputs": [{}] * 17}, "runner.inputs: has 17 entries; the maximum is 16"),
        ({"runner__secrets": ["A"]}, "runner.secrets: must be an object: {...}"),
        ({"runner__kind": "gke"}, "runner.kind: must be 'tpu' or 'gpu'"),
        ({"runner__stuck_after_seconds": 1}, "runner.stuck_after_seconds: must be at least 5"),
        ({"runner__num_replicas": "2"}, "runner.num_replicas: must be a whole number"),
        ({"runner__num_replicas": 1.5}, "runner.num_replicas: must be a whole number"),
        ({"metadata__priority": 6}, "metadata.priority: must be at most 5"),
        ({"metadata__user_id": "a" * 129}, "metadata.user_id: must have at most 128 characters"),
        ({"command": ""}, "command: must not be empty"),
        ({"command": "a\x00b"}, "command: has a character that is not allowed there"),
    ],
)
def test_what_is_wrong_is_said_in_words_for_the_specs_writer(changes: dict[str, Any], message: str) -> None:
    runner = {"kind": "tpu", "instance_type": "tpu-v4-8"}
    with pytest.raises(InvalidSpec) as refusal:
        parse(document(**{"runner": runner, **changes}))
    assert str(refusal.value) == f"not a valid job spec (version 1): {message}"


@pytest.mark.parametrize("no_object", [b"3", b"null", b"[]", b'"a"'])
def test_a_document_that_is_no_object_is_called_that(no_object: bytes) -> None:
    with pytest.raises(InvalidSpec, match="object") as refusal:
        parse(no_object)
    assert "_Spec" not in str(refusal.value)


def test_an_instance_type_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(UnknownInstanceType, match="tpu-v4-32"):
        parse(document(runner={"kind": "tpu", "instance_type": "tpu-v4-33"}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 40 + b"1" + b"}" * 40,
        b'{"version": 1, "version": 1}',
        b'{"version": NaN}',
        b'{"version": Infinity}',
        b'{"version": ' + b"9" * 5000 + b"}",
        b'{"version": 1, "name": "\\ud800"}',
        b"null",
        b"[]",
        b'"text"',
        b" " * (limits.SPEC_MAX_BYTES + 1),
    ],
)
def test_bytes_that_are_no_spec_are_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(InvalidSpec):
        parse(data)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".a", "a/b", "../x", "-a", "a b", "a\n", "x" * 129, "job.cleanup", "ä", "a~b", "job~abcdefghij",
     "a*", "a?", "a[1]", "a#1", "a%20", "$a", "a;b", "a'b", "team-bastion", "team-bastion-2", "team-bastion-20260102",
     "a\x00"],
)  # fmt: skip
def test_a_name_that_could_harm_another_key_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpec):
        keys.check_job_name(name, bastion="team-bastion")
    with pytest.raises(InvalidSpec):
        job_spec.parse(ANCESTOR.replace("job-1", "x").encode(), name=name, bastion="team-bastion")


@pytest.mark.parametrize(
    "name",
    ["alice:train", "a,b", "a=1", "a+b", "a@b.com", "_a", "a-", "a.", "job.d", "job-20260102", "job-20260102.3",
     "x" * 80, "x" * 128, "train.abcdefghij", "Job-A"],
)  # fmt: skip
def test_a_name_of_an_ancestors_client_is_read_if_it_harms_nobody(name: str) -> None:
    assert parse(document(name=name), name=name).name == name
    assert keys.key_name(name) == name


@pytest.mark.parametrize("name", ["alice:train", "a,b", "a-", "job.d", "job-20260102", "x" * 64, "Job-A"])
def test_fewer_names_are_created_than_read(name: str) -> None:
    with pytest.raises(InvalidSpec):
        keys.check_job_name(name, bastion="team-bastion", new=True)


def test_names_are_read_with_capitals_and_written_without() -> None:
    assert parse(document(name="Job-A"), name="Job-A").name == "Job-A"
    with pytest.raises(Refused):
        job_spec.new(name="Job-A", bastion="b-bastion", command="true", user_id="u", project_id="p", now=0)


KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"


def runner(**fields: Any) -> dict[str, Any]:
    return document(runner={"kind": "tpu", "instance_type": "tpu-v4-8", "num_replicas": 1, **fields})


def test_a_runner_says_how_often_and_with_what_around_it_the_command_runs() -> None:
    spec = job_spec.new(
        name="j",
        bastion="b-bastion",
        command="true",
        user_id="u",
        project_id="p",
        now=0,
        options=JobOptions(
            instance_type="tpu-v4-8",
            max_tries=3,
            setup="make",
            output_dir="out/a",
            output_sync="worker0",
            max_wait_seconds=3600,
            code_asset_path="gs://b/c.tar",
            proxy=f"lake/ckpt:{KEY}",
        ),
    )
    assert spec.runner is not None
    assert spec.runner.proxy == f"lake/ckpt:{KEY}"
    assert (spec.runner.max_tries, spec.runner.setup, spec.runner.output_dir) == (3, "make", "out/a")
    assert (spec.runner.output_sync, spec.runner.max_wait_seconds) == ("worker0", 3600)
    assert spec.code_asset_path == "gs://b/c.tar"


@pytest.mark.parametrize("absent", [{}, dict.fromkeys(["max_tries", "setup", "output_dir", "output_sync", "proxy"])])
def test_what_a_runner_leaves_out_or_gives_as_null_is_the_default(absent: dict[str, Any]) -> None:
    found = parse(runner(**absent)).runner
    assert found is not None
    assert (found.max_tries, found.setup, found.output_dir) == (1, None, "")
    assert (found.output_sync, found.max_wait_seconds, found.proxy) == ("each", None, "")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tries", 0),
        ("max_tries", 101),
        ("max_tries", "2"),
        ("setup", "a\0b"),
        ("output_dir", ""),
        ("output_dir", "/out"),
        ("output_dir", "a/../../b"),
        ("output_dir", "./"),
        ("output_dir", "a\nb"),
        ("output_sync", "all"),
        ("max_wait_seconds", 0),
        ("stuck_after_seconds", 4),
        ("stuck_after_seconds", 367 * 86400),
        ("secrets", ["A=file:/a"]),
        ("secrets", {"A": "hunter2"}),
        ("secrets", {"A": "file:a"}),
        ("secrets", {"A": "file:/a\nb"}),
        ("secrets", {"A": "env:"}),
        ("secrets", {"A": "sm://our-team"}),
        ("secrets", {"A": "sm://our-team/key/"}),
        ("secrets", {"A": "sm://our-team/../key"}),
        ("secrets", {"A": "sm://our-team/key/latest?x"}),
        ("secrets", {"A": "sm://Our-Team/key"}),
        ("secrets", {"A": "k8s:wandb/key"}),
        ("secrets", {"A": "k8s:secret/wandb"}),
        ("secrets", {"A": "k8s:secret/Wandb/key"}),
        ("secrets", {"A": "k8s:secret/wandb/.."}),
        ("secrets", {"A": "k8s:secret/wandb/..key"}),
        ("secrets", {"A": "k8s:secret/wandb/a/b"}),
        ("secrets", {"A B": "file:/a"}),
        ("secrets", {"BASTION_A": "file:/a"}),
        ("secrets", {f"A{number}": "file:/a" for number in range(33)}),
        ("proxy", ""),
        ("proxy", "lake"),
        ("proxy", f"gs://lake:{KEY}"),
        ("proxy", f"lake:{KEY},lake:{KEY}"),
    ],
)
def test_a_runner_that_asks_for_the_impossible_is_refused_by_field(field: str, value: object) -> None:
    with pytest.raises(InvalidSpec, match=f"runner.{field}") as refused:
        parse(runner(**{field: value}))
    assert "Value error" not in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_variable_is_a_secret_or_not() -> None:
    document = {**runner(secrets={"A": "file:/a"}), "env_vars": {"A": "x"}}
    with pytest.raises(InvalidSpec, match=r"runner.secrets and env_vars both set A; remove one of them"):
        parse(document)
