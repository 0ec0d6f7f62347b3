"""One request: token, faults, path, verb, answer."""

from __future__ import annotations

import dataclasses
import hmac
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from bastion.emulators.kubernetes.apiserver import decoding, deletion, discovery, reading, routes, tables, writing
from bastion.emulators.kubernetes.apiserver.faults import ApiFaults, Fault
from bastion.emulators.kubernetes.apiserver.resources import KUEUE_GROUP, Resource, served
from bastion.emulators.kubernetes.apiserver.routes import Query, Route
from bastion.emulators.kubernetes.apiserver.statuses import (
    ApiFailure,
    bad_request,
    expired,
    method_not_allowed,
    not_acceptable,
    unauthorized,
)
from bastion.emulators.kubernetes.apiserver.store import Store, Stored
from bastion.net.http1 import BadRequest, Disconnect, Headers, Request, Response

_JSON_HEADERS = (("Content-Type", "application/json"), ("Cache-Control", "no-cache, private"))


# kubernetes pkg/registry/batch/job/storage/storage.go
_ORPHANS = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set"
    " propagationPolicy=Orphan to suppress this warning"
)


class Api:
    """The handler of all requests.

    Args:
        ended: Whether the server closes, which ends open watches.
        bookmark_seconds: Interval of a watch's bookmarks.
    """

    def __init__(
        self, store: Store, *, token: str, faults: ApiFaults, ended: Callable[[], bool], bookmark_seconds: float
    ) -> None:
        self._store = store
        self._served = served(kueue=store.has_kueue)
        self._token = token.encode()
        self._faults = faults
        self._ended = ended
        self._bookmark_seconds = bookmark_seconds

    def __call__(self, request: Request) -> Response:
        try:
            fault = self._faults.of(request.method, request.target)
            if fault is not None:
                _begin(fault)
            response = self._answer(request)
            if fault is not None and fault.cut_reply:
                raise Disconnect(reset=True)
        except ApiFailure as failure:
            return _failed(failure)
        return response

    def _answer(self, request: Request) -> Response:
        self._authenticate(request)
        path, query = request.path, Query.parse(request.query)
        if request.method in ("GET", "HEAD") and (found := discovery.answer(path, self._served)):
            if isinstance(found, bytes):
                return _text(200, found)
            return _json(200, found)
        route = routes.parse(path) if self._knows(path) else None
        if route is None:
            return _text(404, b"404 page not found\n")
        _check_accept(request.headers.get("accept"))
        return self._route(request, route, query)

    def _knows(self, path: str) -> bool:
        return self._store.has_kueue or KUEUE_GROUP not in path.split("/")[:3]

    def _authenticate(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode("latin-1"), self._token):
            raise unauthorized()

    def _route(self, request: Request, route: Route, query: Query) -> Response:
        resource = route.resource
        match request.method:
            case "GET" | "HEAD" if not route.name or route.watch:
                if route.subresource:
                    raise method_not_allowed()
                return self._collection(route, query, as_table=tables.is_wanted(request.headers.get("accept")))
            case "GET" | "HEAD" if route.subresource in ("", "status"):
                stored = reading.get(self._store, route, query)
                if tables.is_wanted(request.headers.get("accept")):
                    return _json(200, tables.encoded(stored, query.text("includeObject")))
                return _object(200, stored)
            case "POST" if not route.name and (route.namespace or not resource.namespaced):
                return self._create(request, route, query)
            case "POST" if route.subresource == "binding":
                binding = decoding.json_body(_body(request), request.headers.get("content-type"))
                options = decoding.write_options("CreateOptions", query)
                writing.bind(self._store, route, binding, dry_run=options.dry_run)
                return _json(
                    201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
                )
            case "PUT" if route.name and route.subresource in ("", "status"):
                options = decoding.write_options("UpdateOptions", query)
                document, warnings = self._document(request, resource, options.validation)
                stored, created = writing.update(self._store, route, document, dry_run=options.dry_run)
                return _object(201 if created else 200, stored, warnings)
            case "PATCH" if route.name and route.subresource in ("", "status"):
                return self._patch(request, route, query)
            case "DELETE" if route.name and not route.subresource:
                return self._delete(request, route, query)
            case "DELETE" if not route.name and "deletecollection" in resource.verbs:
                return self._delete_collection(request, route, query)
            case "PUT" if resource.custom:
                raise bad_request("name must be provided")
            case _:
                raise method_not_allowed()

    def _collection(self, route: Route, query: Query, *, as_table: bool) -> Response:
        include = query.text("includeObject")
        if not route.watch and not query.flag("watch"):
            page = reading.listed(self._store, route, query)
            if as_table:
                return _json(200, tables.table(route.resource, page.items, reading.list_metadata(page), include))
            return _json(200, reading.list_body(route.resource, page))
        cuts = self._faults.cuts
        watch = reading.watch(
            self._store,
            route,
            query,
            cut=lambda: self._faults.cuts != cuts,
            ended=self._ended,
            bookmark_seconds=self._bookmark_seconds,
        )
        if as_table:
            watch = dataclasses.replace(watch, encode=lambda stored: tables.encoded(stored, include))
        return Response(status=200, headers=Headers(_JSON_HEADERS), body=watch.lines())

    def _document(self, request: Request, resource: Resource, validation: str) -> tuple[dict[str, Any], list[str]]:
        """The object of a body, and warnings about its fields."""
        document = decoding.json_body(_body(request), request.headers.get("content-type"))
        twice = decoding.repeated_fields(document)
        return decoding.check_fields(decoding.check_kind(document, resource), resource, validation, twice=twice)

    def _create(self, request: Request, route: Route, query: Query) -> Response:
        options = decoding.write_options("CreateOptions", query)
        document, warnings = self._document(request, route.resource, options.validation)
        return _object(201, writing.create(self._store, route, document, dry_run=options.dry_run), warnings)

    def _patch(self, request: Request, route: Route, query: Query) -> Response:
        media = decoding.media_type(request.headers.get("content-type"))
        options = decoding.write_options("PatchOptions", query)
        content = decoding.parsed(_body(request)) if media.endswith("json") else None
        warnings: list[str] = []

        def check(document: dict[str, Any]) -> dict[str, Any]:
            clean, found = decoding.check_fields(
                document, route.resource, options.validation, patch=True, status=route.subresource == "status"
            )
            warnings.extend(found)
            return clean

        stored = writing.patch(self._store, route, content, media, dry_run=options.dry_run, check=check)
        return _object(200, stored, warnings)

    def _delete(self, request: Request, route: Route, query: Query) -> Response:
        options = decoding.delete_options(_body(request), request.headers.get("content-type"), query)
        with self._store.lock:
            stored = reading.get(self._store, route, Query())
            last, gone = deletion.delete(self._store, stored, options)
        warnings = []
        if route.resource.orphans and options.propagation is None and options.orphan_dependents is None:
            warnings = [_ORPHANS]
        if not gone:
            return _object(202 if options.orphan_dependents is False else 200, last, warnings)
        if route.resource.returns_deleted:
            return _object(200, last)
        details = {"name": route.name, "group": route.resource.group, "kind": route.resource.plural}
        details["uid"] = last.object["metadata"]["uid"]
        details = {name: value for name, value in details.items() if value}
        return _json(
            200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        )

    def _delete_collection(self, request: Request, route: Route, query: Query) -> Response:
        options = decoding.delete_options(_body(request), request.headers.get("content-type"), query)
        if route.resource.namespaced and not route.namespace:
            raise method_not_allowed()
        with self._store.lock:
            page = reading.listed(self._store, route, query)
            deleted = [deletion.delete(self._store, stored, options)[0] for stored in page.items]
            page = reading.Page(version=self._store.version, items=deleted)
        return _json(200, reading.list_body(route.resource, page))


def _begin(fault: Fault) -> None:
    if fault.delay_seconds:
        time.sleep(fault.delay_seconds)
    if fault.too_old:
        raise expired("The resourceVersion for the provided list or watch is too old: an injected fault")
    if fault.refuse:
        raise injected(fault)


def injected(fault: Fault) -> ApiFailure:
    reasons = {
        429: "TooManyRequests",
        500: "InternalError",
        503: "ServiceUnavailable",
        504: "Timeout",
        401: "Unauthorized",
        403: "Forbidden",
        404: "NotFound",
    }
    details = {"retryAfterSeconds": fault.retry_after} if fault.retry_after else {}
    text = fault.message or "the server refuses this request: an injected fault"
    return ApiFailure(fault.refuse, reasons.get(fault.refuse, ""), text, details=details)


def _body(request: Request) -> bytes:
    data = request.body.read(decoding.BODY_MAX_BYTES + 1)
    if len(data) > decoding.BODY_MAX_BYTES:
        raise BadRequest("the request's body is larger than 3 MiB", status=413)
    return data


def _object(code: int, stored: Stored, warnings: Sequence[str] = ()) -> Response:
    """`warnings` become headers (apiserver pkg/warning; RFC 9111 calls 299 a persistent warning)."""
    response = _json(code, stored.encoded + b"\n")
    for text in warnings:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{escaped}"')
    return response


def _json(code: int, body: object) -> Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Response(status=code, headers=Headers(_JSON_HEADERS), body=data)


def _text(code: int, body: bytes) -> Response:
    return Response(status=code, headers=Headers([("Content-Type", "text/plain; charset=utf-8")]), body=body)


def _check_accept(header: str) -> None:
    """Raises ApiFailure (406)."""
    accepted = [[word.strip() for word in part.split(";")] for part in header.split(",")]
    given = [
        media
        for media, *parameters in accepted
        if not any(parameter.startswith("as=") and parameter != "as=Table" for parameter in parameters)
    ]
    if header and not any(media in ("application/json", "application/*", "*/*") for media in given):
        raise not_acceptable()


def _failed(failure: ApiFailure) -> Response:
    response = _json(failure.code, failure.status())
    if seconds := (failure.details or {}).get("retryAfterSeconds"):
        response.headers.add("Retry-After", str(seconds))
    return response
