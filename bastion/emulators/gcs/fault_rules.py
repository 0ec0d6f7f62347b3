"""Fault rules: which requests are hit, how often, and what happens.

A rule is a flag, `503,method=POST,percent=5`, or JSON with the same fields, `{"fault": "503", "method": "POST"}`.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_validator, model_validator

from bastion.core.errors import Refused

_RULES_MAX = 100

Fault = Literal["408", "429", "500", "503", "lost-reply", "reset", "reset-body", "stall", "slow"]


class FaultRule(BaseModel):
    """One rule.

    Attributes:
        fault: A status, answered without effect; `lost-reply` (takes effect, then the connection ends without an
            answer); `reset` (the connection is reset without effect); `reset-body` (in the middle of the answer's
            body); `stall` (waits first); `slow` (both bodies are slow).
        path: Regular expression, searched for in the raw path and query.
        percent: Probability that a matching request is hit.
        nth: `3` or `3-5`: only these of the matching requests, counted from 1; empty: all.
        times: Maximum number of hits; None: no limit.
        seconds: How long `stall` waits.
        then: What `stall` does after waiting: `go-on`, or `drop` the connection.
        rate: Bytes a second of `slow`.
        after: Bytes of the body before a `reset-body`; None: half of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fault: Fault
    method: str = ""
    path: str = ""
    percent: float = 100.0
    nth: str = ""
    times: int | None = None
    seconds: float = 1.0
    then: Literal["go-on", "drop"] = "go-on"
    rate: int = 64 * 1024
    after: int | None = None

    @field_validator("fault", "nth", mode="before")
    @classmethod
    def _number_as_text(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value

    @field_validator("path")
    @classmethod
    def _is_expression(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"not a valid regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _is_possible(self) -> FaultRule:
        if not 0 < self.percent <= 100:
            raise ValueError("percent must be above 0 and at most 100")
        if self.nth and (not re.fullmatch(r"[1-9]\d{0,8}(-[1-9]\d{0,8})?", self.nth) or self.span[0] > self.span[1]):
            raise ValueError("nth must be a number from 1 or a range, like 3 or 3-5")
        if not 0 <= self.seconds <= 3600:
            raise ValueError("seconds must be between 0 and 3600")
        if self.rate < 1 or (self.times is not None and self.times < 1) or (self.after is not None and self.after < 0):
            raise ValueError("rate and times must be at least 1, and after at least 0")
        return self

    @property
    def span(self) -> tuple[int, int]:
        """The first and last matching request that can be hit, counted from 1."""
        first, _, last = self.nth.partition("-")
        return (int(first), int(last or first)) if first else (1, 1 << 62)


_RULES = TypeAdapter(list[FaultRule])
_FIELDS = "|".join(FaultRule.model_fields)


def parse_flag(text: str) -> FaultRule:
    """Parse `FAULT[,FIELD=VALUE...]`. Raises Refused.

    A comma in a path is part of it unless a field's name follows.
    """
    fault, *assignments = re.split(rf",(?=(?:{_FIELDS})=)", text)
    if "," in fault:  # the fault itself has no field name
        fault, wrong = fault.split(",", 1)
        names = ", ".join(name for name in FaultRule.model_fields if name != "fault")
        raise Refused(f"--fault={text}: {wrong!r} is not FIELD=VALUE; the fields are {names}")
    document = {"fault": fault, **dict(assignment.split("=", 1) for assignment in assignments)}
    try:
        return FaultRule.model_validate(document)
    except ValidationError as error:
        raise Refused(f"--fault={text}: {_first_problem(error)}; write it like 503,method=POST,percent=5") from error


def parse_json(data: bytes) -> list[FaultRule]:
    """Parse a JSON list of rules. Raises Refused."""
    try:
        rules = _RULES.validate_json(data)
    except ValidationError as error:
        raise Refused(f"{_first_problem(error)}; send a list of rules") from error
    if len(rules) > _RULES_MAX:
        raise Refused(f"{len(rules)} rules; the maximum is {_RULES_MAX}")
    return rules


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(step) for step in problem["loc"])
    said = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {said}" if where else said
