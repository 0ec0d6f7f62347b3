"""What the client reports about one job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from bastion.client.jobs.results import Result
from bastion.core.model.job_record import JobRecord
from bastion.core.model.lifecycle import Status
from bastion.core.model.run_public_keys import RunPublicKeys
from bastion.core.status.document import JobEntry


class Stage(str, Enum):
    """A job's stage, by the objects in the bucket."""

    SUBMITTED = "submitted"  # a spec that the daemon has not accepted yet
    KNOWN = "known"  # the daemon keeps a record of it
    INVALID = "invalid"  # the daemon refuses the spec
    COMPLETED = "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """A spec that was written. `update`: it replaced the spec of the same job, which keeps its uid."""

    name: str
    uid: str
    generation: int
    update: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """What the bucket holds about one name.

    Attributes:
        uid: Of the newest job of that name; empty if it has none (a refused name, a foreign state).
        entry: Its entry in the status document; None if that is about another uid.
        record: The daemon's record; None if the state is missing or foreign.
        status: Its status, even of a foreign state; None without a state.
        problem: Why the daemon refuses the spec; empty if it does not.
        generation: Of the spec object; 0 if there is none.
    """

    name: str
    uid: str
    stage: Stage
    entry: JobEntry | None = None
    record: JobRecord | None = None
    status: Status | None = None
    result: Result | None = None
    problem: str = ""
    generation: int = 0

    @property
    def public_keys(self) -> RunPublicKeys | None:
        """The public keys of its runs; None if there is neither a record nor a result that has them."""
        if self.record is not None and self.record.uid == self.uid:
            return self.record.public_keys
        if self.result is not None:
            return self.result.public_keys
        # It had no run yet: whatever is in its folders is another's.
        return RunPublicKeys(uid=self.uid) if self.stage in (Stage.SUBMITTED, Stage.INVALID) else None

    @property
    def labels(self) -> Mapping[str, str]:
        """The user's own, as far as the daemon has accepted the spec."""
        if self.result is not None:
            return self.result.labels
        return self.record.job.labels if self.record is not None else {}

    @property
    def runs_as_root(self) -> bool:
        """Whether the job asked for it (`runner.root`)."""
        return self.record is not None and self.record.job.as_root

    @property
    def image(self) -> str:
        """The container image that the spec names; empty if none, or if the job has completed."""
        runner = self.record.job.runner if self.record is not None else None
        return runner.image if runner is not None else ""

    @property
    def output_to(self) -> str:
        """The user's own place of the job's outputs; empty if they are in the bastion's bucket."""
        if self.result is not None:
            return self.result.output_to
        runner = self.record.job.runner if self.record is not None else None
        return runner.output_to if runner is not None else ""

    @property
    def stores_outputs(self) -> bool:
        """Whether its hosts have an output folder, as far as the daemon has accepted the spec."""
        if self.result is not None:
            return self.result.stores_outputs
        runner = self.record.job.runner if self.record is not None else None
        return runner is not None and bool(runner.output_dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """What a cancel did.

    Attributes:
        uid: Of the job; empty if a refused spec was removed.
        generation: Of its spec object.
        already: The same request was there before.
        removed: It was a refused spec, and is deleted now.
        submitter: Whose job it is, if the daemon lets only admins do this; otherwise empty.
    """

    name: str
    uid: str
    generation: int = 0
    already: bool = False
    removed: bool = False
    submitter: str = ""
