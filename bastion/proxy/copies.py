"""Copy objects within the service: copy the ciphertext, and wrap its key again for the destination.

The source's envelope is bound to the source's name, so every copy sends all attributes of the destination. The service
cannot copy between plaintext and ciphertext.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass

from bastion.net.http1 import Response
from bastion.proxy.calls import Call, relayed
from bastion.proxy.changes import checked_document, encoded
from bastion.proxy.objects import Known
from bastion.proxy.reads.reading import check_plaintext
from bastion.proxy.resources import (
    Json,
    answered_resource,
    ask_json,
    check_named,
    json_answer,
    json_of,
    plain_resource,
    wanted_of,
)
from bastion.proxy.sealed.envelope import Envelope, EnvelopeBroken, visible
from bastion.proxy.service.targets import requeried
from bastion.proxy.service.upstream import Answer, UpstreamUnavailable
from bastion.storage_wire.documents import text_field
from bastion.storage_wire.refusals import Refusal, invalid

_TRIES = 3
# What a copy inherits by default. The storage class comes from the bucket.
_ATTRIBUTES = ("contentType", "contentDisposition", "contentLanguage", "cacheControl", "customTime")
# A client that sets one of these replaces all of them.
_REPLACING = frozenset({*_ATTRIBUTES, "contentEncoding", "metadata"})
_CONDITIONS = {
    "ifSourceGenerationMatch": "ifGenerationMatch",
    "ifSourceGenerationNotMatch": "ifGenerationNotMatch",
    "ifSourceMetagenerationMatch": "ifMetagenerationMatch",
    "ifSourceMetagenerationNotMatch": "ifMetagenerationNotMatch",
}
_OF_THE_DESTINATION = (*_CONDITIONS.values(), "generation", "rewriteToken", "maxBytesRewrittenPerCall", "projection")
_TAGS = frozenset({"if-match", "if-none-match"})
_TOKEN = "gcsproxy."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copying:
    """A requested copy: the source as stored, the destination's envelope (None for plaintext), and the service's
    answer.
    """

    source: Known
    envelope: Envelope | None
    answer: Answer


def copy(call: Call) -> Response:
    copying = _copy(call, _Token())
    return copying if isinstance(copying, Response) else answered_resource(call, copying.answer)


def rewrite(call: Call) -> Response:
    """Answer `rewriteTo`; the sizes in the answer are those of the plaintext."""
    wanted = wanted_of(call)
    copying = _copy(call, _Token.read(call.query.get("rewriteToken")))
    if isinstance(copying, Response):
        return copying
    answer = copying.answer
    if answer.status != 200:
        return relayed(answer, call.request)
    document = json_of(answer)
    size = copying.source.plain_bytes
    try:
        rewritten = int(document["totalBytesRewritten"])
    except (KeyError, TypeError, ValueError) as error:
        raise UpstreamUnavailable("the service did not say how much it has rewritten; try again") from error
    document["objectSize"] = str(size)
    document["totalBytesRewritten"] = str(size if document.get("done") else min(rewritten, size))
    if isinstance(document.get("resource"), dict):
        check_named(call, document["resource"])
        document["resource"] = plain_resource(call.parts, document["resource"])
    if token := document.get("rewriteToken"):
        document["rewriteToken"] = _Token(service=str(token), envelope=copying.envelope).write()
    return json_answer(answer, document, wanted)


def _copy(call: Call, token: _Token) -> _Copying | Response:
    document = checked_document(call)
    tried = None
    for _ in range(_TRIES):
        found = _source(call)
        if isinstance(found, Response):
            return found
        check_named(call, found, call.route.source)
        known = call.parts.objects.remember(Known.of_resource(found))
        envelope = _envelope(call, known, token)
        added = {"sourceGeneration": str(known.generation)}
        if token.service:
            added["rewriteToken"] = token.service
        answer = ask_json(
            call,
            "POST",
            call.request.path,
            requeried(call.request.query, added=added),
            document=document if envelope is None else _attributes(document, found, envelope),
        )
        # Not found: this generation of the source, if it was replaced; else the destination.
        if answer.status != 404 or tried == known.generation:
            return _Copying(source=known, envelope=envelope, answer=answer)
        answer.close()
        tried = known.generation
    raise UpstreamUnavailable("the source of the copy keeps changing; try again")


def _source(call: Call) -> Json | Response:
    """The source's resource under the client's conditions, or the error answer."""
    path = call.request.path.rsplit("/", 5)[0]  # without copyTo/b/BUCKET/o/OBJECT
    query = requeried(call.request.query, without=(*_OF_THE_DESTINATION, *_CONDITIONS, "sourceGeneration"))
    demanded = {theirs: call.query.get(name) for name, theirs in _CONDITIONS.items() if name in call.query}
    if "sourceGeneration" in call.query:
        demanded["generation"] = call.query.get("sourceGeneration")
    answer = ask_json(call, "GET", path, requeried(query, added=demanded), without=_TAGS)
    if answer.status == 200:
        return json_of(answer)
    return relayed(answer, call.request)


def _envelope(call: Call, source: Known, token: _Token) -> Envelope | None:
    """The copy's envelope, the same in all calls of a rewrite; None for plaintext.

    Raises Refusal like `_moved`, and with 400 if the token belongs to another rewrite.
    """
    envelope = _moved(call, source)
    begun = token.envelope
    if begun is None or envelope is None:
        # This rewrite did not begin here; the service decides.
        return envelope
    destination = call.route.bucket, call.route.name
    if call.parts.envelopes.open(begun, *destination) != call.parts.envelopes.open(envelope, *destination):
        raise invalid("The rewriteToken belongs to another rewrite, or the source was replaced.")
    return begun


def _moved(call: Call, source: Known) -> Envelope | None:
    """The copy's envelope; None for plaintext.

    Raises Refusal: 501 if only one of source and destination is encrypted, 403 if this plaintext must not be read.
    """
    destination = call.route.bucket, call.route.name
    kek = call.parts.mapping.key_for(*destination)
    if source.envelope is None:
        if kek is not None and call.parts.encrypt:
            raise _impossible(f"{source.bucket}/{source.name} is not encrypted, and {'/'.join(destination)} must be")
        if call.parts.mapping.key_for(source.bucket, source.name) is not None:
            check_plaintext(call, source)
        return None
    if kek is None:
        raise _impossible(
            f"{source.bucket}/{source.name} is encrypted, and there is no key for {'/'.join(destination)}"
        )
    return call.parts.envelopes.moved(source.envelope, (source.bucket, source.name), destination, kek)


def _impossible(why: str) -> Refusal:
    return Refusal(
        501,
        "notImplemented",
        f"{why}; the storage service cannot change that in a copy. Download and upload the object "
        "through the proxy instead.",
    )


def _attributes(document: Json, source: Json, envelope: Envelope) -> Json:
    if _REPLACING.isdisjoint(document):
        taken = {name: source[name] for name in _ATTRIBUTES if name in source}
        return {**taken, **document, "metadata": {**visible(source.get("metadata") or {}), **envelope.to_metadata()}}
    sent = {name: value for name, value in document.items() if name != "contentEncoding"}
    entries = encoded(envelope, text_field(document, "contentEncoding")).to_metadata()
    return {**sent, "metadata": {**(document.get("metadata") or {}), **entries}}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    """A rewrite in progress: all its calls must send the same envelope, through any proxy.

    `service` is the service's own token, empty at the start.
    """

    service: str = ""
    envelope: Envelope | None = None

    def write(self) -> str:
        if self.envelope is None:
            return self.service
        data = json.dumps([self.service, self.envelope.to_metadata()]).encode()
        return _TOKEN + base64.urlsafe_b64encode(data).decode()

    @classmethod
    def read(cls, text: str) -> _Token:
        """Parse a token. Raises Refusal (400) if the proxy did not issue it."""
        if not text.startswith(_TOKEN):
            return cls(service=text)
        try:
            service, entries = json.loads(base64.urlsafe_b64decode(text.removeprefix(_TOKEN).encode()))
            envelope = Envelope.from_metadata(entries)
        except (binascii.Error, ValueError, TypeError, AttributeError, RecursionError, EnvelopeBroken) as error:
            raise invalid("The rewriteToken is not valid.") from error
        if not isinstance(service, str) or envelope is None:
            raise invalid("The rewriteToken is not valid.")
        return cls(service=service, envelope=envelope)
