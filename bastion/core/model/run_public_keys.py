"""The public keys of a job's runs, as its record or its result has them: what readers believe of what hosts wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bastion.core.bucket.keys import Run

# No public key: no signature is one of it.
NOBODY: Final = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPublicKeys:
    """The public keys of one job.

    Attributes:
        attempts: By their numbers; empty for one that an older version started, whose hosts prove nothing.
            Those that never had machines are not among them: nobody wrote for them.
        cleanups: Of the tries of its cleanup command, in order.
    """

    uid: str
    attempts: Mapping[int, str] = field(default_factory=dict)
    cleanups: Sequence[str] = ()

    def of(self, run: Run) -> str | None:
        """Return the run's public key, empty if it has none; None if the job had no such run."""
        if run.uid != self.uid:
            return None
        if self._of_older_version:
            return ""
        if run.attempt:
            return self.attempts.get(run.attempt)
        return self.cleanups[run.cleanup_try - 1] if run.cleanup_try <= len(self.cleanups) else None

    @property
    def by_run(self) -> dict[str, str]:
        """Of the attempts, as manifests of outputs name them."""
        return {f"{self.uid}-{number}": key for number, key in self.attempts.items()}

    def proving(self, run: Run) -> str | None:
        """The same, where a value counts only with a proof: None also for an attempt without a key beside others."""
        return None if not (known := self.of(run)) and not self._of_older_version else known

    @property
    def _of_older_version(self) -> bool:
        """Whether the whole job is from a version without keys."""
        return bool(self.attempts) and not any(self.attempts.values()) and not any(self.cleanups)
