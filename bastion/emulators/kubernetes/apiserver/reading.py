"""get, list and watch.

Sources: apiserver pkg/endpoints/handlers/get.go, pkg/storage/cacher, apimachinery
pkg/apis/meta/internalversion/validation/validation.go.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from bastion.emulators.kubernetes.apiserver import pages, selectors
from bastion.emulators.kubernetes.apiserver.resources import Resource
from bastion.emulators.kubernetes.apiserver.routes import Query, Route
from bastion.emulators.kubernetes.apiserver.selectors import Matches
from bastion.emulators.kubernetes.apiserver.statuses import (
    ApiFailure,
    Problem,
    bad_request,
    expired,
    forbidden_field,
    internal,
    invalid,
    not_found,
    not_supported,
    too_large_version,
)
from bastion.emulators.kubernetes.apiserver.store import Store, Stored, TooOld
from bastion.emulators.kubernetes.apiserver.watches import Watch

_BOOKMARK_SECONDS = 60.0
_MATCHES = ("Exact", "NotOlderThan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Part of a list. `remaining` is None with a selector, as upstream cannot count what matches."""

    version: int
    items: list[Stored]
    continuation: str = ""
    remaining: int | None = None


def get(store: Store, route: Route, query: Query) -> Stored:
    """Raises ApiFailure: 404, or 504 for a version that is not there yet."""
    if (version := _version(query)) > store.version:
        raise too_large_version(version, store.version)
    stored = store.get(route.resource, route.namespace, route.name)
    if stored is None:
        raise not_found(route.resource, route.name)
    return stored


def selector(route: Route, query: Query) -> Matches:
    """The test of label and field selector, and of the name of a watch on one object."""
    by_label = selectors.labels(query.text("labelSelector"))
    by_field = selectors.fields(route.resource, query.text("fieldSelector"))
    name = route.name
    if by_label is by_field is selectors.everything and not name:
        return selectors.everything
    return lambda document: (
        by_label(document) and by_field(document) and (not name or document["metadata"]["name"] == name)
    )


def listed(store: Store, route: Route, query: Query) -> Page:
    """Raises ApiFailure."""
    _check_options(query, watch=False)
    matches = selector(route, query)
    limit = query.number("limit") or 0
    version, start = _version(query, listing=True), ""
    if text := query.text("continue"):
        if query.text("resourceVersion"):
            raise bad_request("specifying resource version is not allowed when using continue")
        version, start = pages.read(text)
    exact = bool(start) or query.text("resourceVersionMatch") == "Exact"
    with store.lock:
        if version > store.version:
            raise too_large_version(version, store.version)
        at = version if exact and version > 0 else store.version
        try:
            items = store.items_at(route.resource, at, route.namespace)
        except TooOld as error:
            raise _expired_list(start, at, error) from error
    items = [stored for stored in items if stored.key >= start]
    if matches is not selectors.everything:
        items = [stored for stored in items if matches(stored.object)]
    if not limit or len(items) <= limit:
        return Page(version=at, items=items)
    return Page(
        version=at,
        items=items[:limit],
        continuation=pages.token(at, items[limit - 1].key + "\0"),
        remaining=len(items) - limit if matches is selectors.everything else None,
    )


def _expired_list(start: str, at: int, error: TooOld) -> ApiFailure:
    """410; for a page with a token to go on inconsistently (apiserver pkg/storage/etcd3/errors.go)."""
    if not start:
        return expired(f"The resourceVersion for the provided list is too old: {at} ({error.oldest})")
    return expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list"
        " without the continue parameter, or use the continue token in this response to retrieve the remainder of the"
        " results. Continuing with the provided token results in an inconsistent list - objects that were created,"
        " modified, or deleted between the time the first chunk was returned and now may show up in the list.",
        continuation=pages.token(-1, start),
    )


def watch(
    store: Store,
    route: Route,
    query: Query,
    *,
    cut: Callable[[], bool],
    ended: Callable[[], bool],
    bookmark_seconds: float = _BOOKMARK_SECONDS,
) -> Watch:
    """Raises ApiFailure. A version that is too old becomes an event of the stream."""
    _check_options(query, watch=True)
    matches = selector(route, query)
    version = _version(query)
    bookmarks = query.flag("allowWatchBookmarks")
    streamed_list = query.flag("sendInitialEvents")
    initial: tuple[Stored, ...] = ()
    with store.lock:
        if streamed_list and version > store.version:
            raise too_large_version(version, store.version)
        current = streamed_list or (not version and "sendInitialEvents" not in query.values)
        if current:
            initial = tuple(stored for stored in store.items(route.resource, route.namespace) if matches(stored.object))
        after = version if version and not streamed_list else store.version
    return Watch(
        store=store,
        resource=route.resource,
        namespace=route.namespace,
        matches=matches,
        after=after,
        initial=initial,
        initial_end=streamed_list and bookmarks,
        bookmark_seconds=bookmark_seconds if bookmarks else 0.0,
        timeout_seconds=query.number("timeoutSeconds") or None,
        cut=cut,
        ended=ended,
    )


def _version(query: Query, *, listing: bool = False) -> int:
    text = query.text("resourceVersion")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        # apiserver pkg/storage/api_object_versioner.go, ParseResourceVersion.
        wrong = f'strconv.ParseUint: parsing "{text}": invalid syntax'
        raise (
            bad_request(f"invalid resource version: {wrong}")
            if listing
            else internal(f'resourceVersion: Invalid value: "{text}": {wrong}')
        )
    return int(text)


def _check_options(query: Query, *, watch: bool) -> None:
    """ValidateListOptions. Raises ApiFailure (422)."""
    match, version = query.text("resourceVersionMatch"), query.text("resourceVersion")
    problems: list[Problem] = []
    if "sendInitialEvents" in query.values:
        problems += _streamed_list_problems(query, match, watch=watch)
    elif match:
        if watch:
            problems.append(
                forbidden_field(
                    "resourceVersionMatch",
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                )
            )
        if not version:
            problems.append(
                forbidden_field(
                    "resourceVersionMatch", "resourceVersionMatch is forbidden unless resourceVersion is provided"
                )
            )
        if query.text("continue"):
            problems.append(
                forbidden_field("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided")
            )
        if match not in _MATCHES:
            problems.append(not_supported("resourceVersionMatch", match, [*_MATCHES, ""]))
        if match == "Exact" and version == "0":
            text = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
            problems.append(forbidden_field("resourceVersionMatch", text))
    if problems:
        raise invalid("ListOptions", "meta.k8s.io", "", problems)


def _streamed_list_problems(query: Query, match: str, *, watch: bool) -> list[Problem]:
    if not watch:
        return [forbidden_field("sendInitialEvents", "sendInitialEvents is forbidden for list")]
    problems = []
    if match != "NotOlderThan":
        problems.append(
            forbidden_field(
                "resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            )
        )
    if query.text("continue"):
        problems.append(
            forbidden_field("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided")
        )
    return problems


def list_metadata(page: Page) -> dict[str, object]:
    metadata: dict[str, object] = {"resourceVersion": str(page.version)}
    if page.continuation:
        metadata["continue"] = page.continuation
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
    return metadata


def list_body(resource: Resource, page: Page) -> bytes:
    """The JSON of a list. Items of built-in kinds have no kind and apiVersion, those of custom kinds do."""
    metadata = json.dumps(list_metadata(page), separators=(",", ":"))
    head = f'{{"kind":"{resource.kind}List","apiVersion":"{resource.api_version}","metadata":{metadata}'
    items = (stored.encoded if resource.custom else stored.body for stored in page.items)
    return b'%s,"items":[%s]}\n' % (head.encode(), b",".join(items))
