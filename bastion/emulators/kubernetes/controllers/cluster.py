"""What the controllers share: caches of the API's objects, and the way in which they write.

The answer to a write enters the cache at once, so that the next decision of a controller sees its own writes; upstream
has expectations for that (pkg/controller/controller_utils.go).
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from bastion.emulators.kubernetes.client import ApiClient, ApiError, Informer, Obj, Unreachable, running
from bastion.emulators.kubernetes.client.requests import Propagation
from bastion.emulators.kubernetes.controllers.api_objects import (
    CONFIG_MAP,
    JOB,
    JOB_SET,
    KUEUE_KINDS,
    NODE,
    POD,
    SECRET,
    SERVICE,
    Kind,
    path_of,
    uid_of,
)
from bastion.emulators.kubernetes.controllers.events import Recorder

Clock = Callable[[], datetime.datetime]  # with a time zone


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An Event to record on an object."""

    about: Obj
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write to the API.

    Attributes:
        body: The object (create, update) or the merge patch.
        refused: Recorded if the server refuses the write; the refusal's words are added to its message.
        uid: Of a deletion: only the object with this uid.
    """

    method: Literal["create", "update", "patch", "delete"]
    path: str
    body: Obj = field(default_factory=dict)
    propagation: Propagation = "Background"
    grace_seconds: int | None = None
    uid: str | None = None
    refused: Event | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a reconciler decided: writes in this order, then events; and when to look again, if nothing changes."""

    writes: tuple[Write, ...] = ()
    events: tuple[Event, ...] = ()
    again_seconds: float | None = None


NOTHING = Outcome()


def update_status(obj: Obj, status: Obj) -> Write:
    return Write(method="update", path=path_of(obj, "status"), body={**obj, "status": status})


def delete(obj: Obj, *, propagation: Propagation = "Background", grace_seconds: int | None = None) -> Write:
    return Write(
        method="delete", path=path_of(obj), propagation=propagation, grace_seconds=grace_seconds, uid=uid_of(obj)
    )


class Cluster:
    """The caches of one API server, and writes to it; shared by the controllers' threads."""

    def __init__(self, client: ApiClient, *, clock: Clock = utc_now, kueue: bool = False) -> None:
        self.client = client
        self.clock = clock
        self.has_kueue = kueue
        kinds = (JOB_SET, JOB, POD, NODE, SERVICE, CONFIG_MAP, SECRET, *(KUEUE_KINDS if kueue else ()))
        self._informers = {kind.kind: Informer(client, kind.root) for kind in kinds}
        self._recorder = Recorder(client, clock)

    def informer(self, kind: Kind) -> Informer:
        return self._informers[kind.kind]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Fill the caches and keep them current. Raises TimeoutError."""
        with running(self._informers):
            yield

    def apply(self, outcome: Outcome) -> None:
        """Carry out the writes; a patch or deletion of an object that is gone succeeds. Raises ApiError."""
        for write in outcome.writes:
            self.write(write)
        for event in outcome.events:
            self.record(event)

    def write(self, write: Write) -> Obj | None:
        """Return the server's answer; None if there was nothing left to patch or delete. Raises ApiError."""
        try:
            answer = self._send(write)
        except Unreachable:
            # It may exist: a second one under a generated name must not follow.
            if write.method == "create" and (informer := self._informers.get(write.body["kind"])) is not None:
                informer.resync()
            raise
        except ApiError as error:
            if error.code == 404 and write.method in ("patch", "delete"):
                return None
            # A deletion of another object of the name.
            if error.code == 409 and write.method == "delete":
                return None
            if write.refused is not None and (error.code in (400, 403, 422) or error.reason == "AlreadyExists"):
                refused = write.refused
                self._recorder.record(refused.about, refused.reason, refused.message + error.message, warning=True)
            raise
        self.learn(answer)
        return answer

    def record(self, event: Event) -> None:
        self._recorder.record(event.about, event.reason, event.message, warning=event.warning)

    def learn(self, answer: Obj) -> None:
        informer = self._informers.get(answer.get("kind", ""))
        if informer is not None and "resourceVersion" in answer.get("metadata", ()):
            informer.learn(answer)

    def _send(self, write: Write) -> Obj:
        if write.method == "create":
            return self.client.create(write.path, write.body)
        if write.method == "update":
            return self.client.update(write.path, write.body)
        if write.method == "patch":
            return self.client.patch(write.path, write.body)
        return self.client.delete(
            write.path, propagation=write.propagation, grace_seconds=write.grace_seconds, uid=write.uid
        )


class Index:
    """Objects of an informer by a key that is computed from each, such as the uid of its controller."""

    def __init__(self, informer: Informer, keys_of: Callable[[Obj], Iterable[str]]) -> None:
        self._informer = informer
        self._keys_of = keys_of
        self._members: dict[str, dict[str, Obj]] = {}
        informer.subscribe(self._change)

    def get(self, key: str) -> list[Obj]:
        """In the order of their names."""
        # A copy: the informer's thread changes the original.
        members = list((self._members.get(key) or {}).copy().values())
        return sorted(members, key=lambda obj: str(obj["metadata"]["name"]))

    def _change(self, old: Obj | None, new: Obj | None) -> None:
        for obj in (old,) if old is not None else ():
            for key in self._keys_of(obj):
                if members := self._members.get(key):
                    members.pop(uid_of(obj), None)
                    if not members:
                        self._members.pop(key, None)
        for obj in (new,) if new is not None else ():
            for key in self._keys_of(obj):
                self._members.setdefault(key, {})[uid_of(obj)] = obj
