"""How a job ended, by `jobs/complete/<job>`. Pure.

Reading is lenient: AXLearn's daemons write no `result`, and one odd field must not hide the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from bastion.core import documents, limits
from bastion.core.errors import EXIT_CANCELLED, EXIT_REFUSED, InvalidDocument
from bastion.core.model import job_record
from bastion.core.model.job_record import Instant
from bastion.core.model.run_public_keys import RunPublicKeys


class _Part(BaseModel):
    """An object whose malformed fields have their defaults."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _or_default(cls, value: Any, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        try:
            return read(value)
        except ValidationError:
            return cls.model_fields[str(info.field_name)].get_default(call_default_factory=True)


def _objects(value: object) -> object:
    return [each for each in value if isinstance(each, (dict, _Part))] if isinstance(value, (list, tuple)) else ()


class PastTry(_Part):
    """A failed try that another one followed. `failed_worker`: the first to fail."""

    number: StrictInt = 0
    exit_code: StrictInt | None = None
    failed_worker: StrictInt | None = None
    started_at: Instant | None = None
    ended_at: Instant | None = None
    checkpointed_at: Instant | None = None
    first_step: StrictInt | None = None
    last_step: StrictInt | None = None
    stuck: StrictBool = False


class PastAttempt(_Part):
    """One past attempt.

    Attributes:
        running_since: None if no host ever ran the command.
        public_key: Proves what its hosts wrote; empty if an older version started it.
        zone: Empty on the bastion itself, or if it was not recorded.
        tries: The failed tries before the last.
    """

    number: StrictInt = 0
    started_at: Instant | None = None
    running_since: Instant | None = None
    ended_at: Instant | None = None
    cause: StrictStr = ""
    message: StrictStr = ""
    exit_code: StrictInt | None = None
    failed_worker: StrictInt | None = None
    held_at: Instant | None = None
    try_since: Instant | None = None
    stopped_at: Instant | None = None
    checkpointed_at: Instant | None = None
    first_step: StrictInt | None = None
    last_step: StrictInt | None = None
    zone: StrictStr = ""
    public_key: StrictStr = ""
    tries: Annotated[tuple[PastTry, ...], BeforeValidator(_objects)] = ()

    @property
    def may_have_run(self) -> bool:
        """Whether its hosts may have written something."""
        return job_record.may_have_run(self.running_since, self.cause)

    @staticmethod
    def of(attempt: job_record.PastAttempt) -> PastAttempt:
        return PastAttempt.model_validate(attempt.model_dump(mode="json"))


class PastCleanup(_Part):
    """How the cleanup command ended; `outcome` is `succeeded` or `failed`, empty if it did not run."""

    tries: StrictInt = 0
    outcome: StrictStr = ""
    exit_code: StrictInt | None = None
    message: StrictStr = ""
    public_keys: tuple[StrictStr, ...] = ()


class Result(_Part):
    """A job's end.

    Attributes:
        uid: Empty in a document by another implementation.
        outcome: `succeeded`, `failed`, `cancelled` or `refused`; `unknown` if the document does not say.
        exit_code: For `--wait`: the command's own, 75 for infrastructure, 143 cancelled, 64 refused.
        document: The spec with `result`.
    """

    name: StrictStr = ""
    uid: StrictStr = ""
    outcome: StrictStr = Field(default="unknown", min_length=1)
    exit_code: StrictInt = 1
    message: StrictStr = ""
    failed_worker: StrictInt | None = None
    by: StrictStr = ""
    queued_at: Instant | None = None
    attempts: Annotated[tuple[PastAttempt, ...], BeforeValidator(_objects)] = ()
    earlier_keys: Mapping[str, str] = Field(default_factory=dict)
    cleanup: PastCleanup = PastCleanup()
    document: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def public_keys(self) -> RunPublicKeys:
        """The public keys of its runs."""
        earlier = {int(number): key for number, key in self.earlier_keys.items() if number.isdecimal()}
        past = {each.number: each.public_key for each in self.attempts if each.public_key or each.may_have_run}
        return RunPublicKeys(uid=self.uid, attempts={**earlier, **past}, cleanups=self.cleanup.public_keys)

    @property
    def labels(self) -> Mapping[str, str]:
        """The user's own labels of the job; none if the document's are malformed."""
        metadata = self.document.get("metadata")
        found = metadata.get("labels") if isinstance(metadata, dict) else None
        return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}

    @property
    def group(self) -> str:
        """The group that the spec names; empty if none, or if it is malformed."""
        found = self._table("limits").get("group")
        return found if isinstance(found, str) else ""

    @property
    def user_id(self) -> str:
        found = self._table("metadata").get("user_id")
        return found if isinstance(found, str) else ""

    @property
    def project_id(self) -> str:
        found = self._table("metadata").get("project_id")
        return found if isinstance(found, str) else ""

    @property
    def instance_type(self) -> str | None:
        """None for a job on the bastion itself, or if it is malformed."""
        found = self._table("runner").get("instance_type")
        return found if isinstance(found, str) else None

    @property
    def num_replicas(self) -> int | None:
        found = self._table("runner").get("num_replicas")
        return found if isinstance(found, int) else None

    @property
    def priority(self) -> int | None:
        found = self._table("metadata").get("priority")
        return found if isinstance(found, int) else None

    @property
    def resources(self) -> Mapping[str, int]:
        """Units that the quota charged, by type."""
        found = self._table("metadata").get("resources")
        return {k: v for k, v in found.items() if isinstance(v, int)} if isinstance(found, dict) else {}

    @property
    def inbox(self) -> str:
        """Whose inbox the spec came from; empty if it came from `jobs/active/`."""
        found = self._table("result").get("inbox")
        return found if isinstance(found, str) else ""

    def _table(self, name: str) -> Mapping[str, Any]:
        found = self.document.get(name)
        return found if isinstance(found, dict) else {}

    @property
    def output_to(self) -> str:
        """The user's own place of the job's outputs; empty if there is none, or it is malformed."""
        runner = self.document.get("runner")
        found = runner.get("output_to") if isinstance(runner, dict) else None
        return found if isinstance(found, str) else ""

    @property
    def stores_outputs(self) -> bool:
        """Whether the spec names an output folder."""
        return bool(self._table("runner").get("output_dir"))


def read_result(data: bytes, *, name: str) -> Result:
    """Parse `jobs/complete/<job>`. Raises `InvalidDocument` if it is not a JSON object."""
    try:
        document = documents.loads(data, max_bytes=limits.RESULT_MAX_BYTES)
    except documents.DocumentError as error:
        raise InvalidDocument(f"cannot read the result of {name}: {error}") from error
    if not isinstance(document, dict):
        raise InvalidDocument(f"the result of {name} is not a JSON object")
    fields, own = document.get("result"), document.get("name")
    result = Result.model_validate(fields if isinstance(fields, dict) else {})
    return result.model_copy(
        update={
            "name": own if own and isinstance(own, str) else name,
            "exit_code": _exit_code(result),
            "document": document,
        }
    )


def _exit_code(result: Result) -> int:
    match result.outcome:
        case "cancelled":
            return EXIT_CANCELLED
        case "refused":
            return EXIT_REFUSED
        case "succeeded":
            return 0
        case _:  # a failure must never look like a success, whatever its number
            return result.exit_code if 0 < result.exit_code < 256 else 1
