"""Object listings, with every item as its owner sees it.

An item that cannot be opened must not hide the others: it is listed without checksums and ciphertext fields.
"""

from __future__ import annotations

import logging
from typing import Any

from bastion.core.errors import KmsRefused, KmsUnavailable
from bastion.net.http1 import Response
from bastion.proxy.calls import Call, Parts, relayed
from bastion.proxy.resources import (
    Json,
    ask_json,
    json_answer,
    json_of,
    plain_resource,
    wanted_of,
    wants_changed,
    wants_sums,
    without_ours,
)
from bastion.proxy.sealed.envelope import EnvelopeBroken
from bastion.proxy.service.upstream import UpstreamUnavailable
from bastion.storage_wire.json_fields import Projection

_log = logging.getLogger(__name__)


def list_objects(call: Call) -> Response:
    """Answer a listing of a bucket's objects, or one page of it."""
    wanted = wanted_of(call)
    of_items = _of_items(wanted)
    if not wants_changed(of_items):
        return call.pass_on_alone()
    answer = ask_json(call, "GET", call.request.path, call.request.query)
    if answer.status != 200:
        return relayed(answer, call.request)
    document = json_of(answer)
    items = document.get("items")
    if items is not None:
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise UpstreamUnavailable("the service did not answer with a list of objects; try again")
        document["items"] = _plain_items(call.parts, items, sums=wants_sums(of_items))
    return json_answer(answer, document, wanted)


def _of_items(wanted: Projection | None) -> Projection | None:
    return wanted if wanted is None or "*" in wanted else wanted.get("items", {})


def _plain_items(parts: Parts, items: list[Any], *, sums: bool) -> list[Json]:
    shown = []
    for item in items:
        plain: Json | None = None
        if sums:
            try:
                plain = plain_resource(parts, item)
            except EnvelopeBroken as error:
                _log.warning("a list shows %r in %s without its checksum: %s", item["name"], item["bucket"], error)
            except (KmsUnavailable, KmsRefused) as error:
                _log.warning("a list shows objects without their checksums: %s", error)
                # Do not ask an unavailable key service for each of a thousand items.
                sums = isinstance(error, KmsRefused)
        shown.append(_without_sums(parts, item) if plain is None else plain)
    return shown


def _without_sums(parts: Parts, item: Json) -> Json:
    try:
        return plain_resource(parts, item, sums=False)
    except EnvelopeBroken:
        # The stored length is imprecise, but clients reject an object without a size.
        return without_ours(item)
