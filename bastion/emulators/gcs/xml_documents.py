"""The XML of the XML API: written from nested tuples, read with a size limit and without entities. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from bastion.net.http1 import Headers, Response
from bastion.storage_wire.refusals import Refusal

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
# Listings have another namespace, with the same parts in another order.
LISTING_NAMESPACE = "http://doc.s3.amazonaws.com/2006-03-01"

Element: TypeAlias = "tuple[str, str | Sequence[Element]]"


def document(root: str, content: str | Sequence[Element], *, namespace: str = _NAMESPACE) -> Response:
    inner = _text(content) if isinstance(content, str) else "".join(_written(child) for child in content)
    text = f"<?xml version='1.0' encoding='UTF-8'?><{root} xmlns='{namespace}'>{inner}</{root}>"
    headers = Headers((("Content-Type", "application/xml; charset=UTF-8"),))
    return Response(status=200, headers=headers, body=text.encode("utf-8", "replace"))


def _written(element: Element) -> str:
    name, content = element
    if isinstance(content, str):
        return f"<{name}>{_text(content)}</{name}>"
    return f"<{name}>{''.join(_written(child) for child in content)}</{name}>"


def _text(content: str) -> str:
    # XML 1.0 cannot express most control characters; like the service, write a reference anyway.
    escaped = escape(content)
    if escaped.isprintable():
        return escaped
    return "".join(f"&#{ord(char)};" if ord(char) < 32 else char for char in escaped)


def read(body: bytes, root: str) -> ElementTree.Element:
    """The root element of a request's body, without namespaces. Raises Refusal (400) for any other document."""
    malformed = Refusal(400, "invalid", f"The XML you provided is not a well-formed {root}.", code="MalformedXML")
    # Real clients send no document type, and entities could expand without limit. UTF-16 would hide one, and has NULs.
    if b"<!" in body or b"\0" in body:
        raise malformed
    try:
        tree = ElementTree.fromstring(body)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise malformed from error
    for element in tree.iter():
        element.tag = element.tag.rpartition("}")[2]
    if tree.tag != root:
        raise malformed
    return tree
