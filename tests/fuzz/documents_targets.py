"""What lies in the bucket, as its readers parse it: the daemon, hosts and clients."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence

from pydantic import ValidationError

import quota
from bastion.client.jobs.results import read_result
from bastion.client.logs.pieces import LineJoiner, read_pieces
from bastion.core import documents, recorded_tick
from bastion.core.bucket import agent_archive, gap_lines, keys, outputs, pinned, protocol, results
from bastion.core.bucket.objects import check_key
from bastion.core.encryption.key_mapping import KeyMapping
from bastion.core.errors import BastionError, InvalidDocument, Refused
from bastion.core.instants import from_rfc3339, to_rfc3339
from bastion.core.model import (
    cancel_request,
    daemon_settings,
    identity,
    job_record,
    job_request,
    job_spec,
    lease,
    lifecycle,
    refusal,
)
from bastion.core.status import packing
from bastion.core.tick import TickInput, TickOutput
from bastion.daemon.observe.policy_source import PolicyStatus, RuntimeOptions
from bastion.testing.cluster import BASTION, Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.fuzz.mangling import Form
from tests.fuzz.target import Target
from tests.support.daemon_settings_files import GOOD as SETTINGS

JOB = "train"


@functools.cache
def bucket() -> dict[str, bytes]:
    """A bucket in which a job runs, one ended, one was evicted, and others wait or were refused."""
    return _lived()[0]


@functools.cache
def _lived() -> tuple[dict[str, bytes], list[bytes]]:
    ticks: list[bytes] = []

    def record(given: TickInput, output: TickOutput, policy: PolicyStatus) -> str:
        ticks.append(recorded_tick.to_bytes(given, output, quota_file=policy.data))
        return ""

    cluster = Cluster()
    cluster.daemon._record = record
    cluster.hosts.scripts["done"] = runs_for(2)
    cluster.hosts.scripts["failed"] = runs_for(2, code=3)
    cluster.submit("done", cleanup_command="rm -r x", group="g")
    cluster.submit("failed", instance_type="tpu-v4-8", max_tries=2)
    cluster.submit("borrower", user="bob", project="b", instance_type="tpu-v4-64")
    cluster.settle(12)
    cluster.submit(
        JOB,
        instance_type="tpu-v4-16",
        priority=2,
        env_vars={"A": "b"},
        labels={"team": "x"},
        max_run_seconds=90000,
        code_asset_path="gs://b/code.tar.gz",
        output_dir="out",
        secrets={"KEY": "file:/run/secret"},
        inputs=[{"url": "gs://data/set/", "dir": "data"}],
    )
    for number in range(3):
        cluster.submit(f"waits-{number}", instance_type="tpu-v4-64")
    cluster.store.put(keys.active("bad"), b"{", generation=0)
    cluster.store.put(keys.RUNTIME_OPTIONS, b'{"scheduler": {"dry_run": false, "verbosity": 1}}', generation=0)
    cluster.settle(14)
    cluster.cancel("waits-2")
    found = {meta.key: cluster.store.get(meta.key).data for meta in cluster.store.list("")}
    cluster.settle(6)
    found |= {meta.key: cluster.store.get(meta.key).data for meta in cluster.store.list("")}
    return found, ticks


def under(prefix: str) -> Callable[[], Sequence[bytes]]:
    """The contents of the bucket's objects below a prefix."""

    def seeds() -> Sequence[bytes]:
        found = [data for key, data in bucket().items() if key.startswith(prefix)]
        assert found, prefix
        return found

    return seeds


def _spec(data: bytes) -> None:
    name = _name(data)
    spec = job_spec.parse(data, name=name, bastion=BASTION)
    again = job_spec.parse(spec.to_bytes(), name=name, bastion=BASTION)
    assert again == spec and again.document == spec.document
    accepted = job_spec.parse(bucket()[keys.active(JOB)], name=JOB, bastion=BASTION)
    if spec.name == JOB:
        job_spec.overwriting(spec, accepted)


def _name(data: bytes) -> str:
    """The name that a document gives itself, as a hostile writer would name its object."""
    try:
        found = json.loads(data)["name"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return JOB
    return found if isinstance(found, str) and found.isprintable() else JOB


def _state(data: bytes) -> None:
    try:
        name = json.loads(data)["metadata"]["record"]["name"]
    except (ValueError, LookupError, TypeError, RecursionError):
        name = JOB
    record = job_record.read(data, name=name if isinstance(name, str) else JOB)
    if not isinstance(record, lifecycle.Status):
        assert job_record.read(record.to_bytes(), name=record.name) == record


def _protocol(model: type[protocol.D]) -> Callable[[bytes], None]:
    def parse(data: bytes) -> None:
        value = protocol.read(model, data)
        assert protocol.read(model, value.to_bytes()) == value

    return parse


def _status(data: bytes) -> None:
    status = packing.read(data)
    assert packing.read(documents.dumps(packing.pack(status))) == status


def _part(data: bytes) -> None:
    objects = pinned.unpack(data)
    assert pinned.unpack(pinned.pack(objects)) == objects


def _log(data: bytes) -> None:
    shown: list[bytes] = []
    joiner = LineJoiner(show=lambda piece: shown.append(piece.text), rewriting=len(data) % 2 == 0)
    before = ""
    for piece in read_pieces(data, worker=0, not_before=before):
        assert piece.at >= before
        before = piece.at
        joiner.add(piece)
    joiner.finish()
    gap_lines.last_instant(data)


def _keys(data: bytes) -> None:
    text = data.decode("utf-8", "surrogateescape")
    for part in (text, text.rpartition("/")[2]):
        run = keys.Run.parse(part)
        assert run is None or str(keys.Run.parse(str(run))) == str(run)
        keys.segment_number(part)
        keys.host_of_outputs(part)
        outputs.seq_of_manifest(part)
        outputs.seq_of_object(part)
        keys.inbox_user(part)
        if keys.is_plain_name(part):
            assert "/" not in part and part not in (".", "..")
        keys.InboxKey.parse(part)
    keys.check_job_name(text, bastion=BASTION, new=True)
    check_key(keys.active(text))


def _instants(data: bytes) -> None:
    instant = from_rfc3339(data.decode("utf-8"))
    assert abs(from_rfc3339(to_rfc3339(instant)) - instant) < 1e-3


def _agent_manifest(data: bytes) -> None:
    manifest = agent_archive.Manifest.read(data)
    assert agent_archive.Manifest.read(manifest.to_bytes()) == manifest


def host_results() -> Sequence[bytes]:
    lines = ['{"metric": "seconds", "value": 1.5, "step": 10, "unit": "s"}', ':::MLLOG {"key": "run_start"}']
    environment = results.Environment(processor="cpu", libraries={"jax": "0.6"}, variables={"A": "b"})
    made = results.HostResults(attempt=1, try_number=2, exit_code=0, lines=lines, environment=environment)
    return [made.to_bytes(), results.HostResults(attempt=1, try_number=1, mllog=lines, truncated=True).to_bytes()]


def manifests() -> Sequence[bytes]:
    part = outputs.Part(object=outputs.object_name("f/", 1, "a/b", 0, 1), size=3, sha256="0" * 64)
    stored = outputs.StoredFile(mode=0o644, mtime_ns=10**18, parts=(part,))
    made = outputs.Manifest(
        run="aaaaaaaaaa-1", seq=1, folders=("a", "empty"), files={"a/b": stored, "c": stored}, links={"l": "a/b"}
    )
    return [made.to_bytes()]


def pinned_listings() -> Sequence[bytes]:
    made = pinned.Listing(
        url="gs://b/p/", prefix="p/", objects=2, size=10, disk_size=8192, parts=1, digests=[pinned.digest(b"")]
    )
    return [made.to_bytes()]


def _parts() -> Sequence[bytes]:
    one = pinned.PinnedObject("a/b", 10, 1700000000000000)
    return [pinned.pack([one, pinned.PinnedObject("c", 0, 2)]), pinned.pack([])]


def _agent_manifests() -> Sequence[bytes]:
    wheel = agent_archive.Wheel(name="tomli", version="2", file="tomli-2-py3-none-any.whl", tags=("py3-none-any",))
    return [agent_archive.Manifest(version="1", needs=("tomli",), wheels=(wheel,)).to_bytes()]


def _identities() -> Sequence[bytes]:
    users = {"alice": identity.Inbox(member="user:alice@example.com"), "team": identity.Inbox(project="a", uid=1000)}
    return [identity.Identity(mode=identity.Mode.INBOX, users=users).to_bytes(), identity.OPEN.to_bytes()]


def _requests() -> Sequence[bytes]:
    return [cancel_request.to_bytes(by="alice", at="2026-01-02T03:04:05Z", uid="aaaaaaaaaa"), b"CANCELLING\n"]


def _job_requests() -> Sequence[bytes]:
    kinds = job_request.RequestKind
    return [
        job_request.JobRequest(kind=kinds.HOLD, by="alice", at="2026-01-02T03:04:05Z", reason="bad").to_bytes(),
        job_request.JobRequest(kind=kinds.EXEC, by="alice", uid="aaaaaaaaaa", worker=3).to_bytes(),
    ]


def log_segments() -> Sequence[bytes]:
    text = (
        b"2026-01-02T03:04:05.000006Z stdout F hello\n2026-01-02T03:04:06.000006Z stderr P 50 %\r\n"
        b"2026-01-02T03:04:06.000007Z stderr F \r100 %\n"
    )
    return [text + gap_lines.gap_line(gap_lines.missing(10, "the disk was full"), at=1.7e9)]


QUOTAS = (
    b'[toml-schema]\nversion = "1"\n[total_resources]\nv4 = 64\nv5e = 16\n[project_membership]\na = ["alice", "b.*"]\n'
    b'b = ["bob"]\n[project_resources.a]\nv4 = 0.5\n[project_resources.b]\nv4 = 0.5\nv5e = 1.0\n[project_rules]\n'
    b"max_queued_jobs = 100\n[project_rules.a]\nmax_queued_jobs_per_user = 3\n[admins]\n"
    b'bastion = ["root"]\n[admins.projects]\na = ["alice"]\n',
)
_INVALID = (InvalidDocument,)


def _roundtrip(read: Callable[[bytes], object]) -> Callable[[bytes], None]:
    def parse(data: bytes) -> None:
        value = read(data)
        assert read(value.to_bytes()) == value  # type: ignore[attr-defined]

    return parse


def _agent_arguments() -> Sequence[bytes]:
    arguments = protocol.AgentArguments(
        root="gs://b/x-bastion", bastion="x-bastion", job=JOB, run="a-1", run_key="0" * 64
    )
    return [arguments.to_bytes()]


TARGETS = (
    Target(name="json", parse=documents.loads, errors=(documents.DocumentError,), seeds=under("jobs/")),
    Target(name="spec", parse=_spec, errors=(Refused,), seeds=under("jobs/active/")),
    Target(name="state", parse=_state, errors=_INVALID, seeds=under("jobs/states/")),
    Target(name="cancel-request", parse=cancel_request.read, errors=_INVALID, seeds=_requests),
    Target(name="job-request", parse=_roundtrip(job_request.read), errors=_INVALID, seeds=_job_requests),
    Target(name="refusal", parse=_roundtrip(refusal.read), errors=_INVALID, seeds=under("jobs/invalid/")),
    Target(name="lease", parse=_roundtrip(lease.read), errors=_INVALID, seeds=under(keys.LEASE)),
    Target(name="identity", parse=_roundtrip(identity.read), errors=_INVALID, seeds=_identities),
    Target(name="order", parse=_protocol(protocol.Order), errors=_INVALID, seeds=under("runs/")),
    Target(name="claim", parse=_protocol(protocol.Claim), errors=_INVALID, seeds=under("jobs/claims/")),
    Target(name="report", parse=_protocol(protocol.Report), errors=_INVALID, seeds=under("runs/")),
    Target(name="agent-arguments", parse=_protocol(protocol.AgentArguments), errors=_INVALID, seeds=_agent_arguments),
    Target(name="status", parse=_status, errors=_INVALID, seeds=under(keys.STATUS)),
    Target(
        name="complete", parse=lambda data: read_result(data, name=JOB), errors=_INVALID, seeds=under("jobs/complete/")
    ),
    Target(name="pinned-listing", parse=_roundtrip(pinned.read_listing), errors=_INVALID, seeds=pinned_listings),
    Target(name="pinned-part", parse=_part, errors=_INVALID, seeds=_parts, form=Form.GZIP_JSON),
    Target(name="output-manifest", parse=_roundtrip(outputs.read), errors=_INVALID, seeds=manifests),
    Target(name="host-results", parse=_roundtrip(results.read), errors=_INVALID, seeds=host_results),
    Target(name="agent-manifest", parse=_agent_manifest, errors=(ValueError,), seeds=_agent_manifests),
    Target(name="recorded-tick", parse=recorded_tick.read, errors=_INVALID, seeds=lambda: _lived()[1][4:24:5]),
    Target(
        name="runtime-options",
        parse=lambda data: RuntimeOptions.model_validate(documents.loads(data)),
        errors=(documents.DocumentError, ValidationError),
        seeds=under(keys.RUNTIME_OPTIONS),
    ),
    Target(
        name="daemon-settings",
        parse=daemon_settings.load,
        errors=(daemon_settings.SettingsError,),
        seeds=lambda: [SETTINGS.encode()],
        form=Form.LINES,
    ),
    Target(name="quota", parse=quota.load, errors=(quota.QuotaFileError,), seeds=lambda: QUOTAS, form=Form.LINES),
    Target(name="log-segment", parse=_log, errors=(), seeds=log_segments, form=Form.LINES),
    Target(
        name="keys",
        parse=_keys,
        errors=(BastionError, ValueError),
        seeds=lambda: [key.encode() for key in bucket()],
        form=Form.BYTES,
    ),
    Target(
        name="instants",
        parse=_instants,
        errors=(ValueError, OverflowError),
        seeds=lambda: [b"2026-01-02T03:04:05.000006Z", b"2026-01-02T03:04:05+01:00"],
        form=Form.BYTES,
    ),
    Target(
        name="key-mapping",
        parse=lambda data: KeyMapping.parse(data.decode("utf-8", "replace")),
        errors=(Refused,),
        seeds=lambda: [
            b"vault:projects/p/locations/l/keyRings/r/cryptoKeys/k,attic/deep:projects/p/locations/l/keyRings/r/cryptoKeys/k"
        ],
        form=Form.LINES,
    ),
)
