"""The API of one cluster, as the provisioner needs it: JSON objects by path, with the port's errors.

Paths are API paths such as `/apis/batch/v1/namespaces/default/jobs/x`. Every request has a limit of
`transport.REQUEST_SECONDS`; nothing is repeated that may have landed. Errors: see `api_errors`; a permission that is
missing is `MissingPermission`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from bastion.adapters.kubernetes.api_errors import Conflict, Expired, NoSuchObject
from bastion.adapters.kubernetes.credentials import open_session
from bastion.adapters.kubernetes.operations import TRIED_AGAIN, Operation, operation
from bastion.adapters.kubernetes.transport import REQUEST_SECONDS, Transport
from bastion.core.errors import ProvisionerUnavailable
from bastion.core.model.clusters import ClusterSettings
from bastion.ports import Clock

Propagation = Literal["Foreground", "Background", "Orphan"]
PAGE_OBJECTS = 500
# A list whose pages expire this often is read in one piece, as client-go's pager does
# (staging/src/k8s.io/client-go/tools/pager/pager.go, FullListIfExpired).
_PAGED_ATTEMPTS = 2
T = TypeVar("T")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[T]):
    """All objects of a list, and the version to watch from."""

    items: list[T]
    resource_version: str


class Watch(Protocol):
    """Events of a watch: `{"type": "ADDED", "object": {...}}`; it ends where the server ends it.

    `close` may be called by any thread; it ends an iteration that waits.
    """

    def __iter__(self) -> Iterator[Json]: ...

    def close(self) -> None: ...


class KubernetesApi:
    """Requests to one cluster; thread-safe. Credentials are loaded with the first request.

    `remedy`: what the caller does, or people should do, if the API server does not serve a request now.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        clock: Clock,
        request_seconds: float = REQUEST_SECONDS,
        remedy: str = TRIED_AGAIN,
    ) -> None:
        self.cluster = settings.name
        self._remedy = remedy
        self._transport = Transport(lambda: open_session(settings), clock=clock, request_seconds=request_seconds)

    def close(self) -> None:
        """Close idle connections; watches are closed by their owners."""
        self._transport.close()

    def within(self, seconds: float) -> contextlib.AbstractContextManager[None]:
        """Limit all requests that this thread sends inside together."""
        return self._transport.within(seconds)

    def get(self, path: str) -> Json | None:
        """Return the object; None if the API server says that it does not exist."""
        try:
            return self._transport.send("GET", path, self._operation("get", path))
        except NoSuchObject:
            return None

    def list(
        self, path: str, *, label_selector: str = "", field_selector: str = "", limit: int = PAGE_OBJECTS
    ) -> Listing[Json]:
        """Return all objects of a collection, read in pages of `limit`."""
        return self.list_each(
            path, lambda item: item, label_selector=label_selector, field_selector=field_selector, limit=limit
        )

    def list_each(
        self,
        path: str,
        reduce: Callable[[Json], T],
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = PAGE_OBJECTS,
    ) -> Listing[T]:
        """List, but keep of each object what `reduce` returns: one page is in memory at a time."""
        doing = self._operation("list", path)
        given = {"labelSelector": label_selector, "fieldSelector": field_selector}
        query = {name: text for name, text in given.items() if text}
        for _ in range(_PAGED_ATTEMPTS):
            with contextlib.suppress(Expired):
                return self._pages(path, doing, reduce, dict(query), limit)
        return self._pages(path, doing, reduce, dict(query), 0)

    def create(self, path: str, body: Mapping[str, Any]) -> Json:
        """Post an object to a collection; unknown fields are refused.

        Raises:
            GangExists: The name is taken.
            ProvisionerRefused: It will never be accepted.
            Stockout: A quota of the namespace is used up.
            ProvisionerUnavailable: Unknown; it may exist.
        """
        name = str(body.get("metadata", {}).get("name", ""))
        doing = operation(self.cluster, "create", path, name=name, remedy=self._remedy)
        return self._transport.send("POST", path, doing, query={"fieldValidation": "Strict"}, body=body)

    def delete(self, path: str, *, propagation: Propagation = "Foreground", uid: str | None = None) -> bool:
        """Request an object's deletion; False if it, or the one with this `uid`, does not exist."""
        options: Json = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if uid is not None:
            options["preconditions"] = {"uid": uid}
        try:
            self._transport.send("DELETE", path, self._operation("delete", path), body=options)
        except NoSuchObject:
            return False
        except Conflict:
            if uid is None:
                raise
            return False
        return True

    def patch_labels(self, path: str, labels: Mapping[str, str | None]) -> Json | None:
        """Set labels, remove those that are None, keep the others; None if the object does not exist."""
        try:
            return self._transport.send(
                "PATCH",
                path,
                self._operation("patch", path),
                body={"metadata": {"labels": dict(labels)}},
                content_type="application/merge-patch+json",
            )
        except NoSuchObject:
            return None

    def watch(
        self,
        path: str,
        *,
        resource_version: str,
        label_selector: str = "",
        timeout_seconds: float = 300.0,
        read_seconds: float = 75.0,
    ) -> Watch:
        """Open a watch of a collection with bookmarks; returns when the API server has accepted it.

        Args:
            path: The collection.
            resource_version: Events after this version.
            label_selector: As in `list`.
            timeout_seconds: When the server ends it.
            read_seconds: Longest silence; API servers send a bookmark each minute.

        Raises:
            Expired: That version is gone; list again. It may also come as an ERROR event.
        """
        query = {
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(timeout_seconds))),
        }
        if label_selector:
            query["labelSelector"] = label_selector
        return self._transport.stream(path, self._operation("watch", path), query=query, read_seconds=read_seconds)

    def _operation(self, verb: str, path: str) -> Operation:
        return operation(self.cluster, verb, path, remedy=self._remedy)

    def _pages(
        self, path: str, doing: Operation, reduce: Callable[[Json], T], query: dict[str, str], limit: int
    ) -> Listing[T]:
        if limit:
            query["limit"] = str(limit)
        kept: list[T] = []
        while True:
            page = self._transport.send("GET", path, doing, query=query)
            try:
                kept.extend(reduce(item) for item in page.get("items") or ())
                version, more = page["metadata"]["resourceVersion"], page["metadata"].get("continue", "")
            except (LookupError, TypeError, AttributeError) as error:
                raise ProvisionerUnavailable(
                    f"{doing}: the answer is not a list ({json.dumps(page)[:200]}); check the server's address"
                ) from error
            if not more:
                return Listing(items=kept, resource_version=version)
            query["continue"] = more
