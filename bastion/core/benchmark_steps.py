"""The two commands of a benchmark's finisher, which are this package's own code and need the bucket.

Where commands on the bastion's host have a user of their own, who has no credentials, the agent runs exactly these as
itself (ADR 62). One place makes and recognizes them, so that nothing else is taken for one.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bastion.core.errors import InvalidDocument

What: TypeAlias = Literal["begin", "finish"]

# Variables of the finisher with the lines of the environment, as JSON lists.
UP = "BASTION_BENCHMARK_UP"
DOWN = "BASTION_BENCHMARK_DOWN"
# Of the spec's variables, what the agent hands to a step; with it, what the daemon tells a cleanup command.
VARIABLES = (UP, DOWN, "BASTION_CLEANUP_TRY", "BASTION_OUTCOME", "BASTION_EXIT_CODE")
# Path of the file that tells a step how to run the lines of the environment; see `bastion.benchmark.bash`.
LINES_FILE = "BASTION_BENCHMARK_LINES_FILE"

_DIGEST_CHARS = 10
_PATTERN = re.compile(
    r"exec python3 -I -m bastion\.cli\.main benchmark (begin|finish) "
    r"([a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)/([0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}) --root=.*",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`bastion benchmark <what> <name>/<run>`."""

    what: What
    name: str
    run: str

    def arguments(self, root: str) -> list[str]:
        """What follows `bastion`."""
        return ["benchmark", self.what, f"{self.name}/{self.run}", f"--root={root}"]

    def command(self, root: str) -> str:
        """The command line in the finisher's spec."""
        # `python3` is the agent's own there; -I: no module of the bundle stands before this package's.
        what, run, last = self.arguments(root)[1:]
        option, _, url = last.partition("=")
        return f"exec python3 -I -m bastion.cli.main benchmark {what} {run} {option}={shlex.quote(url)}"


class Lines(BaseModel):
    """How the lines of the environment run: whom they run as (`UID:GID`), where, with which variables."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", defer_build=True)

    user: str
    folder: str
    variables: dict[str, str] = Field(repr=False)

    def to_bytes(self) -> bytes:
        return self.model_dump_json().encode()

    @classmethod
    def read(cls, data: bytes) -> Lines:
        """Raises InvalidDocument."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise InvalidDocument(f"the file {LINES_FILE} names is not the agent's") from error


def parse(command: str, root: str) -> Step | None:
    """Return the step that the command line is, on the bastion of that ROOT; None for every other command."""
    found = _PATTERN.fullmatch(command)
    if found is None:
        return None
    what: What = "begin" if found[1] == "begin" else "finish"
    step = Step(what=what, name=found[2], run=found[3])
    return step if step.command(root) == command else None


def finisher(name: str, run: str) -> str:
    """The name of the run's finisher."""
    return f"{name}-{digest(run)}-finish"


def digest(run: str) -> str:
    return sha256(run.encode()).hexdigest()[:_DIGEST_CHARS]
