"""Parts of API messages that nodes and queued resources share: pages, times, stored messages, node lists."""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from google.cloud import tpu_v2
from google.protobuf import any_pb2

from bastion.emulators.tpu.records import ApiError, Code
from bastion.emulators.tpu.requests import NewNode

_PAGE_MAX = 1000
_T = TypeVar("_T")


def stored(message: Any) -> str:
    """A proto-plus message in the form of the records."""
    return base64.b64encode(type(message).serialize(message)).decode()


def restored(message_type: Any, text: str) -> Any:
    return message_type.deserialize(base64.b64decode(text))


def new_node(location: str, node_id: str, sent: tpu_v2.Node, *, spot: bool, reserved: bool) -> NewNode:
    """The node that a Node message asks for. Raises ApiError (INVALID_ARGUMENT)."""
    if sent.accelerator_config.topology:
        raise ApiError(Code.INVALID_ARGUMENT, "this emulator does not support accelerator_config; use accelerator_type")
    without_metadata = tpu_v2.Node(sent)
    without_metadata.metadata = {}
    return NewNode(
        location=location,
        node_id=node_id,
        accelerator_type=sent.accelerator_type,
        runtime_version=sent.runtime_version,
        service_account=sent.service_account.email,
        metadata=dict(sent.metadata),
        sent=stored(without_metadata),
        spot=spot,
        reserved=reserved,
    )


def page(found: Sequence[_T], name_of: Callable[[_T], str], request: Any) -> tuple[Iterable[_T], str]:
    """The requested page of items sorted by name, and the next page's token ("" at the end)."""
    try:
        after = base64.b64decode(request.page_token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise ApiError(Code.INVALID_ARGUMENT, f"'{request.page_token}' is not a valid page token") from error
    if request.page_size < 0:
        raise ApiError(Code.INVALID_ARGUMENT, "page_size must not be negative")
    rest = [thing for thing in found if name_of(thing) > after]
    found_page = rest[: min(request.page_size or _PAGE_MAX, _PAGE_MAX)]
    if len(found_page) == len(rest):
        return found_page, ""
    return found_page, base64.urlsafe_b64encode(name_of(found_page[-1]).encode()).decode()


def packed(message: Any) -> any_pb2.Any:
    message_with_type = any_pb2.Any()
    message_with_type.Pack(message)
    return message_with_type


def instant(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
