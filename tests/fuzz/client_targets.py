"""What people's files and command lines say, and what clients read of a job's results."""

from __future__ import annotations

import functools
import gzip
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import quota
from bastion.benchmark import file_problems, layout, matrix, mllog
from bastion.benchmark import results as benchmark_results
from bastion.cli import parsing
from bastion.cli.simulate import jobs as simulated_jobs
from bastion.cli.simulate import runs
from bastion.client.tensorboard import event_files
from bastion.core import benchmark_steps
from bastion.core.bucket import results
from bastion.core.durations import seconds_of
from bastion.core.errors import BastionError, InvalidDocument, Refused
from bastion.core.model import inputs, instance_types, labels, secrets
from bastion.core.model.job_spec_format import check_image
from bastion.core.plain_text import plain, plain_line
from bastion.emulators.gcs.fault_rules import parse_flag, parse_json
from bastion.emulators.gcs.globs import Glob
from bastion.emulators.gcs.iam.defaults import policy_of_new_bucket
from bastion.emulators.gcs.iam.rules import ManagedFolder, Rules
from bastion.emulators.gcs.resources import StorageError
from bastion.emulators.kubernetes.apiserver import decoding
from bastion.emulators.kubernetes.apiserver.statuses import ApiFailure
from bastion.user_config import project_file
from bastion.user_config.settings import settings
from bastion.wiring.roots import parse_root
from quota import edit_admins
from tests.fuzz.documents_targets import QUOTAS
from tests.fuzz.mangling import Form
from tests.fuzz.target import Target

D = TypeVar("D", bound=Any)


def _results(data: bytes) -> None:
    found = results.read(data)
    together = benchmark_results.of_hosts({0: found, 1: found})
    for line in mllog.events([*found.mllog, *found.lines]):
        assert line.problem or line.metric
    for values in together.values.values():
        for value in values:
            assert value.value == value.value


def _bench_file(data: bytes) -> None:
    found = file_problems.read(data)
    cells = matrix.cells(found)
    assert len(matrix.members(cells[:50], repeats=2, parallel=1, seed=1)) == 2 * len(cells[:50])


def _documents(data: bytes) -> None:
    models = (layout.Matrix, layout.Newest, layout.Submitted, layout.CellResult, layout.Summary)
    accepted = 0
    for model in models:
        accepted += _read(model, data)
    if not accepted:
        raise InvalidDocument("none of them")


def _read(model: type[D], data: bytes) -> bool:
    try:
        found = layout.read(model, data, "key")
    except InvalidDocument:
        return False
    assert layout.read(model, found.to_bytes(), "key") == found
    return True


def _event_file(data: bytes) -> None:
    event_files.first_step(data)


def _trace(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(prefix="fuzz-") as file:
        file.write(data)
        file.flush()
        runs.read_trace(file.name)


def _config(data: bytes) -> None:
    from unittest import mock

    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        (Path(folder) / "config.toml").write_bytes(data)
        with mock.patch.dict("os.environ", {"BASTION_HOME": folder}):
            settings()


def _project_file(data: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        (Path(folder) / project_file.FILE).write_bytes(data)
        project_file.read_project_file(Path(folder))


def _values(data: bytes) -> None:
    """Every form of a value on a command line; one that is refused must not keep the others from being tried."""
    text = data.decode("utf-8", "surrogateescape")
    key, _, value = text.partition("=")
    accepted = 0
    calls: Sequence[Callable[[], object]] = (
        lambda: inputs.parse(text),
        lambda: inputs.check_url(text),
        lambda: instance_types.lookup(text),
        lambda: check_image(text),
        lambda: labels.check({key: value}),
        lambda: secrets.check_source(text),
        lambda: secrets.check_name(key),
        lambda: parse_root(text),
        lambda: parse_flag(text),
        lambda: secrets.secret_version(text),
        lambda: secrets.pod_secret(text),
    )
    for call in calls:
        try:
            call()
            accepted += 1
        except (BastionError, ValueError):  # noqa: PERF203 - each is tried
            continue
    seconds = seconds_of(text)
    assert seconds is None or 0 <= seconds < 1e15
    for shown in (plain(text), plain_line(text)):
        assert "\x1b" not in shown and "\u202e" not in shown
    if not accepted:
        raise Refused("none of them")


def _command_line(data: bytes) -> None:
    """The words of a command line. They are parsed only: a command that is valid would do what it says."""
    words = [word.decode("utf-8", "surrogateescape") for word in data.split(b"\n") if b"\0" not in word]
    if not words:
        return
    entry, length = parsing.find(words)
    parsing.parse(entry.name, entry.load(), words[length:])


def _edited(data: bytes) -> None:
    quota.load(data)  # as the command does before it edits the file
    text = data.decode("utf-8")
    more = edit_admins.added(text, "carol", "a")
    assert edit_admins.removed(more, "carol", "a") is not None


def _glob(data: bytes) -> None:
    text = data.decode("utf-8")
    Glob(text[:200]).fullmatch("a/b/" + text[-50:])


def _rules(data: bytes) -> None:
    rules = Rules.decoded(data)
    assert Rules.decoded(rules.encoded()) == rules


def _fault_rules(data: bytes) -> None:
    parse_json(data)


# -- seeds ----------------------------------------------------------------------------------------------------------

_EXAMPLE = Path(__file__).parents[2] / "examples" / "benchmark" / "bench.toml"


def _host_results() -> Sequence[bytes]:
    lines = [
        '{"metric": "seconds", "value": 1.5, "step": 10, "unit": "s"}',
        '{"metric": "loss", "value": 2}',
    ]
    logged = [
        ':::MLLOG {"namespace": "", "time_ms": 1, "key": "run_start", "value": null, "metadata": {"step_num": 3}}',
        ':::MLLOG {"namespace": "", "time_ms": 9, "key": "run_stop", "value": null, "metadata": {"status": "success"}}',
        ':::MLLOG {"namespace": "", "time_ms": 9, "key": "eval_accuracy", "value": 0.5, "metadata": {"epoch_num": 3}}',
    ]
    made = results.HostResults(attempt=1, try_number=2, exit_code=0, lines=lines, mllog=logged)
    return [made.to_bytes()]


def _benchmark_documents() -> Sequence[bytes]:
    metric = layout.Metric(unit="s", better=layout.Better.LOWER)
    cell = layout.Cell(cell="a-1", variables={"x": 1, "y": "b"}, repeats=[layout.Repeat(repeat=1, job="n-a-1")])
    run = "20260102T030405Z-0123abcd"
    made = layout.Matrix(
        name="n",
        run=run,
        project="a",
        user="alice",
        seed=1,
        created_at="2026-01-02T03:04:05Z",
        file_sha256="0" * 64,
        metrics={"seconds": metric},
        cells=[cell],
        finisher="n-f",
    )
    value = layout.Value(value=1.5, step=2)
    result = layout.CellResult(
        cell="a-1", repeat=1, job="n-a-1", outcome=layout.Outcome.SUCCEEDED, values={"seconds": [value]}
    )
    return [made.to_bytes(), result.to_bytes(), layout.Newest(run=run).to_bytes()]


def _event_seeds() -> Sequence[bytes]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "events.out.tfevents.1700000000.host"
        event_files.write_scalars(path, [(1.7e9, 3, {"goodput": 0.5}), (1.7e9, 4, {"goodput": 0.6})])
        return [path.read_bytes()]


_FOLDER = ManagedFolder(name="a/", metageneration=1, created=1.0, updated=2.0, policy=policy_of_new_bucket("p"))
_TRACE = b"job_id,project,user,submit_s,duration_s,chips\na,p,u,0,100.5,8\nb,q,u,3.5,20,4\n"
_CONFIG = b'root = "gs://b/x-bastion"\nproject_id = "a"\nuser_id = "alice"\n'
_JOBS = json.dumps(
    [
        {
            "name": "a",
            "project_id": "p",
            "user_id": "u",
            "creation_time": "2026-01-02T03:04:05Z",
            "resources": {"v4": 8},
            "priority": 3,
            "scaling_specs": [{"min_replicas": 1, "max_replicas": 3, "resources_per_replica": {"v4": 8}}],
            "after": ["b"],
        },
        {
            "name": "b",
            "project_id": "p",
            "user_id": "u",
            "creation_time": 1.7e9,
            "resources": {"v4": 8},
            "status": "ACTIVE",
            "tier": 1,
        },
    ]
).encode()
_VALUES = (
    b"gs://data/set/:data",
    b"tpu-v4-32",
    b"us-docker.pkg.dev/p/images/train:v1@sha256:" + b"0" * 64,
    b"team=research",
    b"sm://p/name/3",
    b"file:/run/secret",
    b"KEY=env:X",
    b"1.5h",
    b"gs://bucket/team-bastion",
    b"s3://bucket/team-bastion",
    b"kube://secret/key",
    b"GET:503:2",
)
_COMMANDS = (
    b"launch\n--name=x\n--instance_type=tpu-v4-8\n--\npython3\ntrain.py",
    b"list\n--json",
    b"logs\nx\n--tail=5",
    b"quota\nshow",
)
TARGETS = (
    Target(name="metrics", parse=_results, errors=(InvalidDocument,), seeds=_host_results),
    Target(
        name="bench-file",
        parse=_bench_file,
        errors=(file_problems.BenchmarkFileError,),
        form=Form.LINES,
        seeds=functools.partial(lambda path: [path.read_bytes()], _EXAMPLE),
    ),
    Target(name="benchmark-documents", parse=_documents, errors=(InvalidDocument,), seeds=_benchmark_documents),
    Target(
        name="benchmark-step",
        parse=benchmark_steps.Lines.read,
        errors=(InvalidDocument,),
        seeds=lambda: [benchmark_steps.Lines(user="1:1", folder="/x", variables={"A": "b"}).to_bytes()],
    ),
    Target(name="event-file", parse=_event_file, errors=(InvalidDocument,), seeds=_event_seeds, form=Form.BYTES),
    Target(
        name="trace",
        parse=_trace,
        errors=(Refused,),
        form=Form.LINES,
        seeds=lambda: [_TRACE, gzip.compress(_TRACE, mtime=0)],
    ),
    Target(name="simulated-jobs", parse=simulated_jobs.parse_jobs, errors=(Refused,), seeds=lambda: [_JOBS]),
    Target(name="user-config", parse=_config, errors=(Refused,), seeds=lambda: [_CONFIG], form=Form.LINES),
    Target(
        name="project-file",
        parse=_project_file,
        errors=(Refused,),
        seeds=lambda: [b'profile = "team"\nproject_id = "vision"\n'],
        form=Form.LINES,
    ),
    Target(name="flag-values", parse=_values, errors=(Refused,), seeds=lambda: _VALUES, form=Form.BYTES),
    Target(name="command-line", parse=_command_line, errors=(Refused,), seeds=lambda: _COMMANDS, form=Form.LINES),
    Target(
        name="quota-admins",
        parse=_edited,
        errors=(edit_admins.CannotEdit, quota.QuotaFileError),
        seeds=lambda: QUOTAS,
        form=Form.LINES,
    ),
    Target(
        name="globs",
        parse=_glob,
        errors=(StorageError, ValueError),
        form=Form.BYTES,
        seeds=lambda: [b"**/a{b,c*}[!x-z]?", b"{a,{b,c}}/**"],
    ),
    Target(
        name="folder-rules",
        parse=_rules,
        errors=(ValueError, StorageError),
        seeds=lambda: [Rules(folders={"a/": _FOLDER}).encoded()],
    ),
    Target(
        name="fault-rules",
        parse=_fault_rules,
        errors=(Refused, ValueError),
        seeds=lambda: [b'[{"fault": "503", "method": "POST", "percent": 5}]'],
    ),
    Target(
        name="cluster-request",
        parse=lambda data: decoding.repeated_fields(decoding.parsed(data)),
        errors=(ApiFailure,),
        seeds=lambda: [
            b'{"kind": "Pod", "metadata": {"name": "x", "name": "y"}, "spec": {"containers": []}}',
            b"{%s}" % b",".join(b'"%d":0' % number for number in range(3000)),
        ],
    ),
)
