"""What the query and the headers of a request demand of an object.

Layer: emulator.
"""

from __future__ import annotations

from bastion.emulators.gcs.resources import ConditionFailed, NotModified, Preconditions
from bastion.net.http1 import Headers
from bastion.storage_wire.query import Query

_NO_PRECONDITIONS = Preconditions()


class Parameters(Query):
    """The query parameters of one request, preconditions included."""

    __slots__ = ()

    def preconditions(self) -> Preconditions:
        """What `ifGenerationMatch` and its three relatives demand."""
        return self._preconditions("if")

    def source_preconditions(self) -> Preconditions:
        """What `ifSourceGenerationMatch` and its three relatives demand."""
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
    """Holds `If-Match` and `If-None-Match` of a read against an entity tag.

    Raises:
        ConditionFailed, NotModified: one of them does not hold.
    """
    wanted = headers.get("If-Match")
    if wanted and not _names_tag(wanted, tag):
        raise ConditionFailed(f"the entity tag is {tag}, not {wanted[:80]}")
    unwanted = headers.get("If-None-Match")
    if unwanted and _names_tag(unwanted, tag):
        raise NotModified(f"the entity tag is {tag}")


def _names_tag(header: str, tag: str) -> bool:
    given = (item.strip().removeprefix("W/").strip('"') for item in header.split(","))
    return any(item in ("*", tag.strip('"')) for item in given)
