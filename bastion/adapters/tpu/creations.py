"""The results of creations through the Cloud TPU API: how the operations of one zone ended.

Operations are never awaited. A creation is identified by the name of what it makes: a plain node or a queued resource.
Asking for a failure costs at most one call, and none while a listing shows the thing as creating, because a failed
creation removes it. After a restart, or a creation without an answer, the operation is unknown; then the zone's
operations are read, one page per question.

Invariant: memory is bounded, however many creations there are.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.api_core import exceptions
from google.cloud import tpu_v2
from google.longrunning import operations_pb2

from bastion.adapters.tpu.api_terms import creation_failure, is_rate_limit, refused_quota, remedy
from bastion.adapters.tpu.client import PAGE_SIZE, CloudTpuSettings, Missing, translated
from bastion.core.errors import ProvisionerError, ProvisionerRefused, ProvisionerUnavailable, Stockout
from bastion.core.model.gangs import GangState

# Limits of remembered failures, and of operations found by a search; the oldest are forgotten, and asked for again.
_KEPT_MAX = 1000
# After this many in a row, "an internal error has occurred" counts as a stockout, which is how spot stockouts look.
_INTERNAL_ERRORS_MAX = 5
_INTERNAL = 13


class InternalErrors:
    """Counts each job's internal errors in creations since its last success; thread-safe.

    Attempts of a job share the part of their names before the last hyphen.
    """

    def __init__(self) -> None:
        self._names: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def came_up(self, name: str) -> None:
        with self._lock:
            self._names.pop(name.rpartition("-")[0], None)

    def failure(self, name: str, code: int, message: str) -> ProvisionerError:
        """Return why that creation failed, from its google.rpc.Code and message."""
        if code == _INTERNAL and self._are_too_many(name):
            return ProvisionerError(f"{message} (code {code}), repeatedly: this is not a stockout")
        return creation_failure(code, message)

    def _are_too_many(self, name: str) -> bool:
        with self._lock:
            names = self._names.setdefault(name.rpartition("-")[0], set())
            if len(names) <= _INTERNAL_ERRORS_MAX:
                names.add(name)
            while len(self._names) > _KEPT_MAX:
                del self._names[next(iter(self._names))]
            return len(names) > _INTERNAL_ERRORS_MAX


@dataclass(slots=True)
class _Creation:
    """One creation. `own`: this process started it, so it is the newest of its name. Otherwise a search found it."""

    operation: str
    own: bool
    created: float = 0.0
    done: bool = False
    failure: ProvisionerError | None = None


class ZoneCreations:
    """The last creation of each name in one zone; thread-safe."""

    def __init__(
        self, settings: CloudTpuSettings, client: tpu_v2.TpuClient, zone: str, internal_errors: InternalErrors
    ) -> None:
        self._settings = settings
        self._client = client
        self._zone = zone
        self._internal_errors = internal_errors
        self._lock = threading.Lock()
        self._known: dict[str, _Creation] = {}
        self._coming: set[str] = set()
        # The next page of the zone's operations to read; None if nothing unknown can be in them.
        self._search: str | None = ""

    def start(self, name: str, call: Callable[[], Any]) -> None:
        """Call the API to create; raises the port's errors."""
        with self._lock:
            self._known.pop(name, None)
            self._coming.discard(name)
        try:
            with translated(self._settings, self._zone, f"creating {name}"):
                operation = call()
        except Missing as error:  # what it names: a network, a reservation, the project
            raise ProvisionerRefused(f"{error}; {remedy(str(error))}") from error.__cause__
        except ProvisionerUnavailable as error:
            if isinstance(error.__cause__, exceptions.TooManyRequests) and not is_rate_limit(str(error)):
                # A quota of chips, not calls: waiting helps unless it is zero.
                if refused_quota(str(error)):
                    raise ProvisionerRefused(f"{error}; {remedy(str(error))}") from error.__cause__
                raise Stockout(str(error)) from error.__cause__
            with self._lock:  # if it took effect, its operation is in the zone
                self._search = ""
            raise
        except ProvisionerRefused as error:
            if isinstance(error.__cause__, exceptions.FailedPrecondition) and "capacity" in str(error).lower():
                raise Stockout(str(error)) from error.__cause__
            if isinstance(error.__cause__, (exceptions.Forbidden, exceptions.Unauthorized)):
                raise  # the message tells the possible causes
            raise ProvisionerRefused(f"{error}; {remedy(str(error))}") from error.__cause__
        with self._lock:
            self._remember(name, _Creation(operation.operation.name, own=True))

    def seen(self, states: Mapping[str, GangState]) -> None:
        """Record a listing of the zone."""
        with self._lock:
            self._coming = {name for name, state in states.items() if state is GangState.CREATING}
            for name in states:
                self._settle(name)

    def saw(self, name: str, state: GangState | None) -> None:
        """Record a look at one name; None: it does not exist."""
        with self._lock:
            self._coming.discard(name)
            if state is GangState.CREATING:
                self._coming.add(name)
            if state is not None:
                self._settle(name)

    def deleted(self, name: str) -> None:
        """Forget the failure of a name that is being deleted."""
        with self._lock:
            if (creation := self._known.get(name)) is not None and not creation.done:
                del self._known[name]

    def known_failure(self, name: str) -> ProvisionerError | None:
        """Return why that creation failed, if known, without asking the API."""
        with self._lock:
            creation = self._known.get(name)
            if creation is None or (self._search is not None and not creation.own):
                return None  # an unread page may have a newer one
            return creation.failure

    def failure(self, name: str) -> ProvisionerError | None:
        """Return why that creation failed; at most one call, not retried. Raises ProvisionerUnavailable."""
        with self._lock:
            creation, coming, searching = self._known.get(name), name in self._coming, self._search is not None
        done = creation is not None and creation.done
        if coming and not done:
            return None
        if creation is None or (searching and not creation.own):
            self._read_page()
        elif not done:
            self._look(name, creation.operation)
        return self.known_failure(name)

    def look_at_one(self) -> None:
        """Look at one running creation, in rotation. Covers creations that fail while their object stays listed."""
        with self._lock:
            name = next(
                (name for name in self._known if name in self._coming and not self._known[name].done),
                None,
            )
            if name is None:
                return
            creation = self._known[name] = self._known.pop(name)  # to the end of the queue
        with contextlib.suppress(ProvisionerUnavailable):
            self._look(name, creation.operation)

    # ---- inside

    def _look(self, name: str, operation: str) -> None:
        try:
            with translated(self._settings, self._zone, f"looking at the creation of {name}"):
                found = self._client.get_operation(
                    operations_pb2.GetOperationRequest(name=operation), timeout=self._settings.rpc_timeout_seconds
                )
        except Missing:
            # The service forgets old operations; the object itself now tells the result.
            found = operations_pb2.Operation(done=True)
        failure = self._failure_of(name, found)
        with self._lock:
            creation = self._known.get(name)
            if creation is None or creation.operation != operation or not found.done:
                return
            creation.done, creation.failure = True, failure
            if failure is None:
                del self._known[name]

    def _read_page(self) -> None:
        """Read the next page of the zone's operations, if an unknown creation may be in them."""
        page_token = self._search
        if page_token is None:
            return
        location = f"projects/{self._settings.project}/locations/{self._zone}"
        request = operations_pb2.ListOperationsRequest(name=location, page_size=PAGE_SIZE, page_token=page_token)
        with translated(self._settings, self._zone, f"listing the operations of {self._zone}"):
            page = self._client.list_operations(request, timeout=self._settings.rpc_timeout_seconds)
        met = []
        for operation in page.operations:
            metadata = tpu_v2.OperationMetadata()
            if operation.metadata.Unpack(tpu_v2.OperationMetadata.pb(metadata)) and metadata.verb == "create":
                name = metadata.target.rpartition("/")[2]
                created = metadata.create_time.timestamp() if metadata.create_time else 0.0
                creation = _Creation(operation.name, own=False, created=created, done=operation.done)
                creation.failure = self._failure_of(name, operation)
                met.append((name, creation))
        with self._lock:
            if self._search != page_token:
                return  # another thread read it, or the search restarted
            for name, creation in met:
                best = self._known.get(name)
                if best is None or not (best.own or best.created > creation.created):
                    self._remember(name, creation)
            self._search = page.next_page_token or None
            if self._search is None:
                for name in [n for n, creation in self._known.items() if creation.done and creation.failure is None]:
                    del self._known[name]

    def _failure_of(self, name: str, operation: operations_pb2.Operation) -> ProvisionerError | None:
        error = operation.error
        return self._internal_errors.failure(name, error.code, error.message) if error.code else None

    def _settle(self, name: str) -> None:
        """Count an object that exists, and is not creating, as created."""
        creation = self._known.get(name)
        if creation is not None and creation.own and not creation.done and name not in self._coming:
            del self._known[name]

    def _remember(self, name: str, creation: _Creation) -> None:
        self._known.pop(name, None)
        self._known[name] = creation
        if len(self._known) > _KEPT_MAX:
            over = len(self._known) - _KEPT_MAX
            for oldest in [n for n, known in self._known.items() if known.done or not known.own][:over]:
                del self._known[oldest]
