"""What a waiting job awaits, as the daemon found it out in one tick."""

from __future__ import annotations

from dataclasses import dataclass

from bastion.core.model.job_limits import On


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """How a job ended. `outcome`: its result's; `invalid` if its spec is refused; empty if no such job is known."""

    outcome: str
    exit_code: int = 0

    def fulfills(self, on: On) -> bool:
        if on is On.SUCCEEDED:
            return self.outcome == "succeeded"
        return self.outcome not in ("", "invalid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaiting:
    """What a waiting job awaits.

    Attributes:
        names: Of the jobs that are still to end, or never will; empty: none.
        met: The uids of those whose end is as it asked, in the order of its spec.
        refusal: Why it will never start; empty if it may.
        ending: The attempt of one of them ends now, maybe since long ago: the daemon may have been away.
    """

    names: tuple[str, ...] = ()
    met: tuple[str, ...] = ()
    refusal: str = ""
    ending: bool = False
