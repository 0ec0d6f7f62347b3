"""Job records: the document `jobs/states/<job>`, the daemon's only memory of a job.

`status` and `metadata` are the contract: other clients build an object from exactly these two. Our record is a value of
`metadata`, next to its `format` number; only this module knows where. Records are frozen; a change is a new record,
written by compare-and-swap before anything that depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator, ValidationError

from bastion.core import documents, limits
from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.errors import InvalidDocument, Refused
from bastion.core.instants import from_rfc3339, to_rfc3339
from bastion.core.model import job_spec, lifecycle
from bastion.core.model.audit import Audited
from bastion.core.model.gangs import Place
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.lifecycle import Status
from bastion.core.model.run_public_keys import RunPublicKeys
from bastion.core.plain_text import plain_line

FORMAT = 2
# Our fields beside `status` and `metadata`, at the top level: read, and rewritten in the new format when they change.
_FLAT_FORMAT = 1
# 9999-12-31T23:59:59Z, the last instant that a calendar can write.
LAST_INSTANT = 253_402_300_799.0
# The accepted spec is three levels down: `metadata`, `record`, `spec`.
_MAX_DEPTH = limits.JSON_MAX_DEPTH + 3


def _read_instant(value: object) -> object:
    return from_rfc3339(value) if isinstance(value, str) else value


Instant = Annotated[
    float,
    BeforeValidator(_read_instant),
    Field(ge=0, le=LAST_INSTANT),
    PlainSerializer(to_rfc3339, when_used="json"),
]


def _read_spec(value: object) -> JobSpec:
    if isinstance(value, JobSpec):
        return value
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    return job_spec.from_document(value, name=str(value.get("name")))


StoredSpec = Annotated[
    JobSpec,
    PlainValidator(_read_spec),
    PlainSerializer(lambda spec: spec.document, return_type=dict[str, Any]),
]


class Cause(str, Enum):
    SUCCEEDED = "succeeded"  # the command exited with 0 on all hosts
    FAILED = "failed"  # the command exited with another code on a host
    EVICTED = "evicted"  # a project needs its share
    OVERTIME = "overtime"  # reached its own limit or its project's maximum runtime
    STUCK = "stuck"  # gave no sign for `stuck_after_seconds`, again after its last restart
    CANCELLED = "cancelled"  # by a cancel request, or its spec was deleted or replaced
    REQUEUED = "requeued"  # by a request; the job waits again
    UPDATED = "updated"  # a new version of the same job
    INFRASTRUCTURE = "infrastructure"  # a node or host was lost
    CAPACITY = "capacity"  # the zone has no capacity
    REFUSED = "refused"  # the provisioning API will never accept it
    SUPERSEDED = "superseded"  # a daemon without the lease started it, and the write arrived late; it never counted


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


class Ending(_Part):
    """The decision to end an attempt, made once."""

    cause: Cause
    message: str
    at: Instant
    grace_seconds: float
    # The job that needs the capacity; stored so that a restart does not evict twice for it.
    evicted_for: str | None = None
    # Both are of the first host that failed.
    exit_code: int | None = None
    failed_worker: int | None = None
    provisional: bool = False  # the class of a failure is not settled: some hosts have not sent their last report
    gang_failed: bool = False  # the platform reported the command's failure, and the gang ended with it


class Waiting(_Part):
    """An accepted gang's wait for capacity. `state` is the API's name; `since` is the start of the whole wait.

    While Kueue has not admitted it, it waits in `queue`, and not for capacity; admission starts another wait.
    """

    state: str
    zone: str
    since: Instant
    queue: str = ""
    partial_since: Instant | None = None  # since when some of its hosts hold machines while others wait


class PastTry(_Part):
    """A failed try that another one followed. `exit_code` and `failed_worker` are of the first host that failed.

    Older records lack what it saved and its steps. A stuck try has no exit code: it was ended.
    """

    number: int
    exit_code: int | None = None
    failed_worker: int | None = None
    started_at: Instant | None = None
    ended_at: Instant
    checkpointed_at: Instant | None = None
    first_step: int | None = None
    last_step: int | None = None
    stuck: bool = False


class Restart(_Part):
    """The change to the next try. `failed` counts once all hosts wait for the next try."""

    failed: PastTry
    since: Instant


class Attempt(_Part):
    """One attempt, from the intent until its last node is confirmed gone; its units are charged all that time."""

    number: int = Field(ge=0)  # from 1, never reused; 0 is a run of the cleanup command
    cleanup_try: int = Field(default=1, ge=1, le=limits.CLEANUP_TRIES_MAX)  # the number of that run
    token: str  # random, no secret; shows that a node is of this attempt, and the run's key follows from it
    # Proves what its hosts write (`RunKey.public`); empty in records of older versions, whose hosts prove nothing.
    public_key: str = ""
    started_at: Instant
    tier: int | None = None
    charged: dict[str, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)  # units by resource type
    host_identity: str = ""  # for a job without a slice: its bastion VM, boot and process namespace
    running_since: Instant | None = None
    ending: Ending | None = None
    # Where its gang is created; None on the bastion, and in older records: the provisioner's own zone.
    place: Place | None = None
    agent: str = ""  # digest of its hosts' agent; empty: they fetch none from the bucket
    try_number: int = Field(default=1, ge=1)  # the present try, counted over all attempts of the job
    tries: tuple[PastTry, ...] = ()  # failed tries of this attempt before the present one
    stuck_tries: int = Field(default=0, ge=0)  # stuck ones among all tries of the job before the present one
    try_since: Instant | None = None  # start of the present try, if it is not the attempt's first
    restart: Restart | None = None  # set after the present try failed, until all hosts are ready for the next one
    waiting: Waiting | None = None  # None if the gang does not wait for capacity
    # When the gang was first seen not to wait; hosts must come up within a time from here.
    up_since: Instant | None = None
    held_since: Instant | None = None  # when its slices came, if the job limits the time that it holds them
    epoch: int = Field(default=0, ge=0)  # of the daemon that started it or adopted it last; 0 in older records


class PastAttempt(_Part):
    """An ended attempt, for the result and the history. `tries` lacks the last one, which ended with the attempt.

    `zone` is empty on the bastion. Older records have neither `zone` nor what follows `failed_worker`.

    Attributes:
        public_key: Proves what its hosts wrote; empty if it never had any, or an older version started it.
        held_at: When its machines came, if it waited for them; its end if they never came.
        try_since: Start of its last try, if it had several.
        stopped_at: When its command had ended, or its end was decided, if it ran.
        checkpointed_at, first_step, last_step: Of its last try.
    """

    number: int
    public_key: str = ""
    started_at: Instant
    running_since: Instant | None = None
    ended_at: Instant
    cause: Cause
    message: str
    exit_code: int | None = None
    failed_worker: int | None = None
    held_at: Instant | None = None
    try_since: Instant | None = None
    stopped_at: Instant | None = None
    checkpointed_at: Instant | None = None
    first_step: int | None = None
    last_step: int | None = None
    zone: str = ""
    tries: tuple[PastTry, ...] = ()

    @property
    def may_have_run(self) -> bool:
        """Whether its hosts may have written something: not if it never got machines."""
        return may_have_run(self.running_since, self.cause)


class Outcome(_Part):
    """The end of a job; `jobs/complete/` shows it as `result`."""

    outcome: str  # succeeded | failed | cancelled | refused
    exit_code: int
    message: str
    failed_worker: int | None = None
    by: str = ""


class CleanupEnd(_Part):
    """How the last try of a cleanup command ended."""

    outcome: str  # succeeded | failed
    exit_code: int | None = None
    message: str = ""


class Pin(_Part):
    """The object in an inbox that was accepted, byte by byte."""

    user: str  # whose inbox has it
    generation: int = Field(ge=1)
    sha256: str


class Held(_Part):
    """A user's hold: the job does not start, nor start again."""

    by: str
    since: Instant
    reason: str = ""


class HistoryLine(_Part):
    """One transition that the history may lack. Its number ensures that no line is lost or doubled."""

    number: int
    at: Instant
    status: Status
    text: str
    asked: Audited | None = None  # for the audit trail, if somebody asked for it


def may_have_run(running_since: float | None, cause: str) -> bool:
    """Whether hosts of an attempt that ended so may have written something."""
    return running_since is not None or cause not in (Cause.CAPACITY, Cause.REFUSED, Cause.SUPERSEDED)


def keys_beyond(attempts: Sequence[PastAttempt], earlier: Mapping[str, str]) -> dict[str, str]:
    """Return `earlier_keys` with those of attempts that the record no longer keeps.

    The outputs of a job may be of an attempt long ago, if a hundred later ones found no capacity.
    """
    dropped = attempts[: -limits.PAST_ATTEMPTS_KEPT]
    kept = {str(past.number): past.public_key for past in dropped if past.public_key and past.may_have_run}
    ordered = sorted({**earlier, **kept}.items(), key=lambda item: int(item[0]))
    return dict(ordered[-limits.PAST_ATTEMPTS_KEPT :])


class JobRecord(_Part):
    """The whole state of one job."""

    model_config = ConfigDict(populate_by_name=True, defer_build=True)

    status: Status = Status.PENDING
    # Contract: what AXLearn's tools show (`tier`), without our own keys.
    metadata: dict[str, Any] = Field(default_factory=dict)
    name: str
    uid: str  # identity of the job among others of the same name
    generation: int = Field(ge=1)  # of the spec object that `job` was read from
    pin: Pin | None = None  # None: the spec was accepted from `jobs/active/`, which everybody may write
    # The accepted spec; stored, so that overwriting the object has no effect here.
    job: StoredSpec = Field(validation_alias="spec", serialization_alias="spec")
    # The spec of the last attempt, if an update has replaced it; the source of the cleanup command, because only
    # admitted specs run.
    started: StoredSpec | None = Field(
        default=None, validation_alias="started_spec", serialization_alias="started_spec"
    )
    queued_at: Instant  # server time of the first accepted object: the order of the queue
    attempt: Attempt | None = None
    attempts: tuple[PastAttempt, ...] = ()
    # Public keys of the newest attempts before these that may have written something, by their numbers.
    earlier_keys: dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], str] = Field(default_factory=dict)
    next_attempt: int = Field(default=1, ge=1)
    not_before: Instant | None = None  # end of the pause after a lost attempt, or a failed cleanup
    stockout: bool = False
    infrastructure_failures: int = 0  # attempts lost to infrastructure so far
    failed_tries: int = 0  # tries that failed by the user's doing, or got stuck, and were followed by another
    stuck_tries: int = 0  # the stuck ones among them
    stuck_in_a_row: int = 0  # restarts of stuck tries without a long life between them
    capacity_failures: int = 0  # consecutive attempts that ended for lack of capacity
    zone_turn: int = 0  # number of the next place for its type, modulo the number of places
    waited_seconds: float = 0.0  # total time without capacity: past waits and the pauses between them
    held_seconds: float = 0.0  # total time of past attempts with their slices
    outcome: Outcome | None = None
    after_met: tuple[str, ...] | None = None  # uids of the jobs of `limits.after` that ended as asked
    held: Held | None = None
    # The newest requests that were answered, as `<user>/<id>`: what is deleted late is not answered twice.
    requests_done: tuple[str, ...] = ()
    update_told: int = 0  # generation of the newest update that waits for an attempt to end: the audit trail has it
    cleanup: Attempt | None = None  # the run of the cleanup command, while it is under way
    cleanups: int = Field(default=0, ge=0)  # tries of the cleanup command so far, the present one included
    cleanup_end: CleanupEnd | None = None  # of the last try that has ended
    cleanup_keys: tuple[str, ...] = ()  # public keys of its tries, the present one included
    cleanup_done: bool = False  # whether no further try of the cleanup command follows
    history_next: int = Field(default=1, ge=1)
    history: tuple[HistoryLine, ...] = ()

    @property
    def public_keys(self) -> RunPublicKeys:
        """The public keys of its runs."""
        past = {each.number: each.public_key for each in self.attempts if each.public_key or each.may_have_run}
        earlier = {int(number): key for number, key in self.earlier_keys.items()}
        present = {self.attempt.number: self.attempt.public_key} if self.attempt is not None else {}
        return RunPublicKeys(uid=self.uid, attempts={**earlier, **past, **present}, cleanups=self.cleanup_keys)

    def proofs_before(self, attempt: Attempt) -> dict[str, str]:
        """The public keys of earlier attempts that may have stored outputs, by run."""
        numbers = [past.number for past in self.attempts if past.may_have_run and past.number != attempt.number]
        known = {**self.earlier_keys, **{str(past.number): past.public_key for past in self.attempts}}
        wanted = [*self.earlier_keys, *map(str, numbers)]
        return {f"{self.uid}-{number}": known[number] for number in wanted if known[number]}

    @property
    def had_attempt(self) -> bool:
        """Whether the scheduler ever admitted the job; others can raise `next_attempt`, so it does not show that."""
        return self.attempt is not None or bool(self.attempts)

    @property
    def owner(self) -> str:
        """Whose inbox its spec and updates come from: whoever submitted it."""
        return self.pin.user if self.pin is not None else self.job.user_id

    @property
    def started_job(self) -> JobSpec:
        return self.started or self.job

    @property
    def awaits_group(self) -> bool:
        """Whether its command has ended, and its cleanup command waits until no other job of its group is left."""
        begun = self.cleanups or self.cleanup is not None or self.cleanup_done
        if self.status is not Status.CLEANING or begun or not self.had_attempt:
            return False
        spec, outcome = self.started_job, self.outcome
        waits = spec.has_cleanup and spec.limits.cleanup_after_group_seconds is not None
        return waits and outcome is not None and outcome.outcome != "cancelled"

    def run(self, attempt: Attempt) -> Run:
        return Run(self.uid, attempt.number, attempt.cleanup_try)

    def evolve(self, *, at: float, text: str = "", asked: Audited | None = None, **changes: Any) -> JobRecord:
        """Return the record with these changes, and with a history line if there is a `text`; checks the transition.

        `asked`: What the audit trail says with that line.
        """
        status = changes.get("status", self.status)
        lifecycle.check(self.status, status)
        if text:
            line = HistoryLine(number=self.history_next, at=at, status=status, text=plain_line(text), asked=asked)
            changes |= {"history": (*changes.get("history", self.history), line), "history_next": self.history_next + 1}
        return self.model_copy(update=changes)

    def to_bytes(self) -> bytes:
        record = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        status, metadata = record.pop("status"), record.pop("metadata")
        return documents.dumps({"status": status, "metadata": {**metadata, "format": FORMAT, "record": record}})


def read(data: bytes, *, name: str) -> JobRecord | Status:
    """Read a state of this format or the one before. Of a state without our record, return only the status.

    Raises InvalidDocument if it is neither.
    """
    text = data.strip()
    if text.upper() in {status.value.encode() for status in Status}:
        return Status(text.decode().upper())
    try:
        document = documents.loads(data, max_depth=_MAX_DEPTH)
        if not isinstance(document, dict):
            raise InvalidDocument(_unreadable(name, "it is not a JSON object"))
        fields = _fields(document, name)
        if fields is None:
            return Status(str(document.get("status", "")).strip().upper())
        record = JobRecord.model_validate(fields)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise InvalidDocument(_unreadable(name, f"{where}: {error.errors()[0]['msg']}")) from error
    except Refused as error:
        raise InvalidDocument(_unreadable(name, f"its spec is not valid: {error}")) from error
    except ValueError as error:
        raise InvalidDocument(_unreadable(name, str(error))) from error
    if record.name != name:
        raise InvalidDocument(f"the state of {name} is that of {record.name!r}")
    problem = _contradiction(record)
    if problem:
        raise InvalidDocument(_unreadable(name, problem))
    return record


def _fields(document: dict[str, Any], name: str) -> dict[str, Any] | None:
    """Return the fields of a `JobRecord`, from a document of either format; None if it has no record of ours."""
    if "format" in document:
        if document["format"] != _FLAT_FORMAT:
            raise InvalidDocument(_unknown_format(name, document["format"]))
        return document
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or "format" not in metadata:
        return None
    if metadata["format"] != FORMAT:
        raise InvalidDocument(_unknown_format(name, metadata["format"]))
    record = metadata.get("record")
    if not isinstance(record, dict):
        raise InvalidDocument(_unreadable(name, "metadata.record is not a JSON object"))
    others = {key: value for key, value in metadata.items() if key not in ("format", "record")}
    return {**record, "status": document.get("status"), "metadata": others}


def _unknown_format(name: str, found: object) -> str:
    return (
        f"the state of {name} has format {str(found)[:40]!r}; this version reads {_FLAT_FORMAT} and {FORMAT}; "
        "run the bastion version that wrote it"
    )


def _unreadable(name: str, problem: str) -> str:
    return (
        f"the state of {name} is not valid: {problem[:300]}; the job is frozen until you restore "
        f"{keys.state(name)}, or delete it after all processes of the job have stopped"
    )


def _contradiction(record: JobRecord) -> str:
    """Return the rule that the record breaks, so that it is not ours; empty if none."""
    status, attempt = record.status, record.attempt
    if not keys.is_uid(record.uid):
        return f"its uid is {record.uid[:40]!r}"
    if attempt is not None and not 0 < attempt.number < record.next_attempt:
        return f"its attempt has number {attempt.number}, but the next one is {record.next_attempt}"
    if attempt is None and status is Status.ACTIVE:
        return "it is ACTIVE without an attempt"
    if attempt is not None and status not in (Status.ACTIVE, Status.CANCELLING):
        return f"it is {status.value} with an attempt"
    if record.cleanup is not None and (status is not Status.CLEANING or record.cleanup.number != 0):
        return f"it is {status.value} with a cleanup run with number {record.cleanup.number}"
    if record.outcome is None and status not in (Status.PENDING, Status.ACTIVE):
        return f"it is {status.value} without an outcome"
    for spec in (record.job, record.started_job):
        if spec.name != record.name:
            return f"its spec is that of {spec.name!r}"
    return ""
