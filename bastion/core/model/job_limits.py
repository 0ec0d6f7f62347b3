"""The spec's optional object `limits`: how long a job runs, what it waits for, its group, and when it cleans up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from bastion.core import limits
from bastion.core.bucket import keys

_GROUP = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")


class On(str, Enum):
    """What of another job is awaited."""

    SUCCEEDED = "succeeded"
    ENDED = "ended"  # however it ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """A job that this one waits for. Its uid decides; its name is for people."""

    job: str
    uid: str
    on: On


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """The values of `limits`; None: no such limit."""

    max_run_seconds: int | None = None  # time holding slices, over all attempts
    after: tuple[Dependency, ...] = ()
    after_at_most_seconds: int | None = None
    group: str = ""  # empty: in none
    cleanup_after_group_seconds: int | None = None  # the cleanup command waits for the group, at most this long
    cleanup_max_seconds: int | None = None  # of one try of the cleanup command
    cleanup_tries: int = 1


# Of a job without `limits`, shared by all of them.
NO_LIMITS = JobLimits()


def check_group(text: str) -> str:
    """Return the name of a group. Raises ValueError if it is not valid."""
    if len(text) > limits.GROUP_MAX_CHARS:
        raise ValueError(
            f"{text[:20]!r}... has {len(text)} characters; a group's name has at most {limits.GROUP_MAX_CHARS}"
        )
    if not _GROUP.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a valid name of a group; use lowercase letters, digits, '.', '_' and '-', "
            "with a letter or digit at both ends"
        )
    return text


def _check_job(text: str) -> str:
    if not keys.is_plain_name(text):
        raise ValueError(f"{text[:40]!r} is not a valid job name")
    return text


def _check_uid(text: str) -> str:
    if not keys.is_uid(text):
        raise ValueError(f"{text[:40]!r} is not the uid of a job; it has 10 lowercase letters or digits from 2 to 7")
    return text


_Seconds = Annotated[int, Field(ge=1, le=limits.EXPECTED_DURATION_MAX_SECONDS)]


class AfterFormat(BaseModel):
    """An item of `limits.after`."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", defer_build=True)

    job: Annotated[str, AfterValidator(_check_job)]
    uid: Annotated[str, AfterValidator(_check_uid)]
    on: Literal["succeeded", "ended"]


class LimitsFormat(BaseModel):
    """`limits`, with unknown fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", defer_build=True)

    max_run_seconds: _Seconds | None = None
    after: Annotated[list[AfterFormat], Field(max_length=limits.AFTER_MAX)] | None = None
    after_at_most_seconds: _Seconds | None = None
    group: Annotated[str, AfterValidator(check_group)] | None = None
    cleanup_after_group_seconds: _Seconds | None = None
    cleanup_max_seconds: int | None = Field(default=None, ge=1, le=limits.CLEANUP_MAX_SECONDS)
    cleanup_tries: int | None = Field(default=None, ge=1, le=limits.CLEANUP_TRIES_MAX)

    @model_validator(mode="after")
    def _check_together(self) -> LimitsFormat:
        if self.after_at_most_seconds is not None and not self.after:
            raise ValueError("after_at_most_seconds requires after")
        if self.cleanup_after_group_seconds is not None and self.group is None:
            raise ValueError("cleanup_after_group_seconds requires group")
        twice = _first_twice([each.uid for each in self.after or ()])
        if twice:
            raise ValueError(f"after has the job {twice} twice; remove one")
        return self

    def needs_cleanup(self) -> str:
        """Return a field that means nothing without a cleanup command; empty if there is none."""
        fields = ("cleanup_after_group_seconds", "cleanup_max_seconds", "cleanup_tries")
        return next((name for name in fields if getattr(self, name) is not None), "")


def read(found: LimitsFormat | None) -> JobLimits:
    if found is None:
        return NO_LIMITS
    made = JobLimits(
        max_run_seconds=found.max_run_seconds,
        after=tuple(Dependency(job=each.job, uid=each.uid, on=On(each.on)) for each in found.after or ()),
        after_at_most_seconds=found.after_at_most_seconds,
        group=found.group or "",
        cleanup_after_group_seconds=found.cleanup_after_group_seconds,
        cleanup_max_seconds=found.cleanup_max_seconds,
        cleanup_tries=found.cleanup_tries or 1,
    )
    return NO_LIMITS if made == NO_LIMITS else made


def _first_twice(texts: Sequence[str]) -> str:
    return next((text for number, text in enumerate(texts) if text in texts[:number]), "")
