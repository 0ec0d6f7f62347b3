"""Preconditions in the query and headers of a request."""

from __future__ import annotations

from bastion.emulators.gcs.resources import ConditionFailed, NotModified, Preconditions
from bastion.net.http1 import Headers
from bastion.storage_wire.query import Query

_NO_PRECONDITIONS = Preconditions()


class Parameters(Query):
    __slots__ = ()

    def preconditions(self) -> Preconditions:
        """`ifGenerationMatch` and its three variants."""
        return self._preconditions("if")

    def source_preconditions(self) -> Preconditions:
        """`ifSourceGenerationMatch` and its three variants."""
        return self._preconditions("ifSource")

    def _preconditions(self, prefix: str) -> Preconditions:
        if not any(name.startswith(prefix) for name in self._values):
            return _NO_PRECONDITIONS
        return Preconditions(
            generation_match=self.number(f"{prefix}GenerationMatch"),
            generation_not_match=self.number(f"{prefix}GenerationNotMatch"),
            metageneration_match=self.number(f"{prefix}MetagenerationMatch"),
            metageneration_not_match=self.number(f"{prefix}MetagenerationNotMatch"),
        )


def check_tags(headers: Headers, tag: str) -> None:
    """Check `If-Match` and `If-None-Match` of a read. Raises ConditionFailed or NotModified."""
    wanted = headers.get("If-Match")
    if wanted and not _names_tag(wanted, tag):
        raise ConditionFailed(f"the entity tag is {tag}, not {wanted[:80]}")
    unwanted = headers.get("If-None-Match")
    if unwanted and _names_tag(unwanted, tag):
        raise NotModified(f"the entity tag is {tag}")


def _names_tag(header: str, tag: str) -> bool:
    given = (item.strip().removeprefix("W/").strip('"') for item in header.split(","))
    return any(item in ("*", tag.strip('"')) for item in given)
