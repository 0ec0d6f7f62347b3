"""Objects' bytes through the JSON API: `alt=media` and `/download/`."""

from __future__ import annotations

from bastion.net.http1 import Headers, Response
from bastion.proxy.calls import Call, refused
from bastion.proxy.objects import Known
from bastion.proxy.reads import reading
from bastion.proxy.resources import ask_json, check_named, json_of
from bastion.proxy.service.targets import requeried, target
from bastion.proxy.service.upstream import Answer

_CONDITIONS = ("ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch", "ifMetagenerationNotMatch")


def read(call: Call) -> Response:
    """Answer a download; see `reading.read`."""
    return reading.read(call, _Json())


class _Json:
    def may_be(self, call: Call, known: Known) -> bool:
        # The service does not accept generation-match together with generation-not-match.
        if "ifGenerationNotMatch" in call.query:
            return False
        demanded = call.query.number("generation"), call.query.number("ifGenerationMatch")
        return all(generation in (None, known.generation) for generation in demanded)

    def describe(self, call: Call) -> Known | Response:
        path = call.request.path.removeprefix("/download")
        answer = ask_json(call, "GET", path, call.request.query)
        if answer.status != 200:
            return refused(answer, call.request)
        resource = json_of(answer)
        check_named(call, resource)
        return Known.of_resource(resource)

    def media(self, call: Call, known: Known, headers: Headers, *, described: bool) -> Answer:
        without: tuple[str, ...] = ("fields",)
        added = {"alt": "media"}
        if described:
            without += _CONDITIONS
            added["generation"] = str(known.generation)
            headers.remove("If-Match")
            headers.remove("If-None-Match")
        elif "generation" not in call.query:
            added["ifGenerationMatch"] = str(known.generation)
        query = requeried(call.request.query, without=without, added=added)
        return call.ask(target=target(call.request.path, query), headers=headers)
