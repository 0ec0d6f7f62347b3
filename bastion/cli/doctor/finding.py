"""What `bastion doctor` found, and what it could not look at."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from bastion.core.errors import AccessDenied, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator


class Severity(str, Enum):
    ERROR = "error"  # somebody can do what he should not, or something does not work
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    severity: Severity
    what: str
    why: str
    remedy: str


@dataclass(slots=True)
class Report:
    """`unchecked`: what was not looked at, by whom it takes to look, or why."""

    findings: list[Finding] = field(default_factory=list)
    unchecked: dict[str, list[str]] = field(default_factory=dict)

    def error(self, what: str, *, why: str, remedy: str) -> None:
        self.findings.append(Finding(severity=Severity.ERROR, what=what, why=why, remedy=remedy))

    def warning(self, what: str, *, why: str, remedy: str) -> None:
        self.findings.append(Finding(severity=Severity.WARNING, what=what, why=why, remedy=remedy))

    def add(self, findings: Iterable[Finding]) -> None:
        self.findings += findings

    def skip(self, what: str, because: str) -> None:
        subjects = self.unchecked.setdefault(because, [])
        if what not in subjects:
            subjects.append(what)

    @contextmanager
    def may_skip(self, what: str, ask: str) -> Iterator[None]:
        """Note what the body could not read. `ask`: who may read it. Raises StoreUnavailable."""
        try:
            yield
        except AccessDenied:
            self.skip(what, f"you may not read it; ask {ask}")
        except StoreUnavailable:
            raise
        except StoreError as error:
            self.skip(what, str(error))
