"""The objects of one bucket (skeleton; the storage follows).

Layer: emulator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bastion.emulator.gcs.resources import Attributes, Declared, ObjectResource, Page, Preconditions
from bastion.emulator.gcs.staging import Staging

_NONE = Preconditions()
_NOTHING = Declared()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One piece of a composite object; None: whichever generation is live."""

    name: str
    generation: int | None = None
    generation_match: int | None = None


class OpenObject:
    """One generation of an object, open for reading."""

    resource: ObjectResource

    def detach_file(self) -> int:
        """The descriptor, from now on the caller's to close."""
        raise NotImplementedError

    def close(self) -> None: ...

    def __enter__(self) -> OpenObject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Bucket:
    """One bucket."""

    name: str

    def stat(self, name: str, *, generation: int | None = None) -> ObjectResource:
        raise NotImplementedError

    def open(self, name: str, *, generation: int | None = None) -> OpenObject:
        raise NotImplementedError

    def stage(self) -> Staging:
        raise NotImplementedError

    def commit(
        self,
        name: str,
        staging: Staging,
        attributes: Attributes,
        preconditions: Preconditions,
        *,
        declared: Declared = _NOTHING,
    ) -> ObjectResource:
        raise NotImplementedError

    def compose(
        self, name: str, sources: Sequence[Source], attributes: Attributes, preconditions: Preconditions
    ) -> ObjectResource:
        raise NotImplementedError

    def copy(
        self,
        source_bucket: Bucket,
        source_name: str,
        name: str,
        attributes: Attributes | None,
        preconditions: Preconditions,
        *,
        source_generation: int | None = None,
        source_preconditions: Preconditions = _NONE,
    ) -> ObjectResource:
        raise NotImplementedError

    def patch(
        self,
        name: str,
        change: Callable[[Attributes], Attributes],
        preconditions: Preconditions,
        *,
        generation: int | None = None,
    ) -> ObjectResource:
        raise NotImplementedError

    def delete(self, name: str, preconditions: Preconditions, *, generation: int | None = None) -> None:
        raise NotImplementedError

    def list(
        self,
        *,
        prefix: str = "",
        delimiter: str = "",
        start_offset: str = "",
        end_offset: str = "",
        page_token: str = "",
        page_size: int = 1000,
        include_trailing_delimiter: bool = False,
        match_glob: str = "",
    ) -> Page:
        raise NotImplementedError
