"""A request's path and query: the kind, the object, what is asked.

Source: apiserver pkg/endpoints/request/requestinfo.go.
"""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass, field

from bastion.emulators.kubernetes.apiserver import resources
from bastion.emulators.kubernetes.apiserver.resources import NAMESPACES, PODS, Resource
from bastion.emulators.kubernetes.apiserver.statuses import bad_request, no_such_path, not_emulated

_REFUSED_SUBRESOURCES = (
    "attach",
    "binding",
    "ephemeralcontainers",
    "eviction",
    "exec",
    "finalize",
    "log",
    "portforward",
    "proxy",
    "resize",
    "scale",
    "token",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The query; of a name that is given twice, the first value counts."""

    values: dict[str, str] = field(default_factory=dict)
    all_values: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Query:
        parsed = urllib.parse.parse_qs(text, keep_blank_values=True)
        return cls(values={name: found[0] for name, found in parsed.items()}, all_values=parsed)

    def text(self, name: str) -> str:
        return self.values.get(name, "")

    def flag(self, name: str) -> bool:
        """Upstream: every value but empty, 0 and false means true; without a value too."""
        return name in self.values and self.values[name].lower() not in ("0", "false")

    def number(self, name: str) -> int | None:
        """Raises ApiFailure (400)."""
        text = self.text(name)
        if not text:
            return None
        try:
            return int(text)
        except ValueError as error:
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a path names. `name` empty: a collection; `namespace` empty: cluster-wide, or a cluster-scoped kind."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    watch: bool = False


def parse(path: str) -> Route | None:
    """The route of a resource path; None for other paths. Raises ApiFailure (404, 501)."""
    parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
    match parts:
        case ["api", version, *rest] if rest:
            return _route("", version, rest)
        case ["apis", group, version, *rest] if rest:
            return _route(group, version, rest)
        case ["api" | "apis", group, *_] if parts[0] == "api" or group in resources.BUILT_IN_GROUPS:
            raise no_such_path()
        case _:
            return None


def _route(group: str, version: str, rest: list[str]) -> Route | None:
    watch = rest[0] == "watch" and len(rest) > 1
    if watch:
        rest = rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = [*rest, "", "", ""][:3]
    resource = resources.find(group, version, plural)
    if resource is None:
        if resources.is_refused(group, plural):
            raise not_emulated(f"{plural}.{group}" if group else plural)
        if group not in resources.BUILT_IN_GROUPS:
            return None
        raise no_such_path()
    if len(rest) > 3 and subresource not in _REFUSED_SUBRESOURCES:
        raise no_such_path()
    if (namespace and not resource.namespaced) or (name and resource.namespaced and not namespace):
        raise no_such_path()
    if resource is NAMESPACES and subresource == "" and len(rest) > 2:
        raise no_such_path()
    _check_subresource(resource, subresource)
    return Route(resource=resource, namespace=namespace, name=name, subresource=subresource, watch=watch)


def _check_subresource(resource: Resource, subresource: str) -> None:
    if not subresource or (subresource == "status" and resource.status) or (resource, subresource) == (PODS, "binding"):
        return
    if subresource in _REFUSED_SUBRESOURCES:
        raise not_emulated(f"{resource.plural}/{subresource}")
    raise no_such_path()
