"""The corpus: scenarios of requests to a Kubernetes API server, as data.

A file `corpus/NAME.json` has `about`, a sentence, and `steps`. Every scenario has a namespace of its own, `${ns}`. A
step has a `name` and

    method, path     GET by default; the path is below the server's URL
    query, headers   of the request
    object, set      a body from `corpus/objects/NAME.json` with some values set: dotted paths, null removes
    body, raw        a body as JSON, or as text
    token            another bearer token; null for none
    save             variables for later steps from the answer: {"version": "/metadata/resourceVersion"}; `+ 1` adds
    events           for a watch: stop after so many events; without it, when the server ends the stream
    pick             only these parts of the answer are compared: JSON pointers
    only             a list in the answer is reduced: {"list": "resources", "key": "name", "values": ["pods"]}
    restart          no request: the server is restarted and has forgotten its older versions
    excluded         why the real server that `make kube` builds cannot answer; `expected` is then written by hand

`${name}` in any text of a request stands for a variable.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
CORPUS, RECORDED = FOLDER / "corpus", FOLDER / "recorded"
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_KNOWN = frozenset(
    {"name", "method", "path", "query", "headers", "object", "set", "body", "raw", "token", "save", "events"}
    | {"pick", "only", "restart", "excluded", "expected"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One request and what is done with its answer; see the module."""

    name: str
    method: str = "GET"
    path: str = ""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: str | None
    token: str | None
    save: Mapping[str, str]
    events: int | None
    pick: tuple[str, ...]
    only: Mapping[str, Any]
    restart: bool
    excluded: str
    expected: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    name: str
    about: str
    steps: tuple[Step, ...]

    @property
    def requests(self) -> int:
        return sum(not step.restart for step in self.steps)

    @property
    def excluded(self) -> int:
        return sum(bool(step.excluded) for step in self.steps)

    def recorded(self) -> dict[str, Any]:
        """The real server's answers by the step's name. Raises FileNotFoundError."""
        answers: dict[str, Any] = json.loads((RECORDED / f"{self.name}.json").read_text())["answers"]
        return answers

    def expected(self) -> dict[str, Any]:
        """The right answers by the step's name: recorded, or written by hand."""
        by_hand = {step.name: step.expected for step in self.steps if step.excluded}
        return {**self.recorded(), **by_hand}


@functools.cache
def scenarios() -> tuple[Scenario, ...]:
    """Raises ValueError for a mistake in a file."""
    return tuple(_scenario(path) for path in sorted(CORPUS.glob("*.json")))


def fill(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables[found[1]], text)


def _scenario(path: Path) -> Scenario:
    document = json.loads(path.read_text())
    steps = tuple(_step(found, path.stem) for found in document["steps"])
    names = [step.name for step in steps]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"{path.name}: two steps are called {', '.join(sorted(twice))}")
    return Scenario(name=path.stem, about=document["about"], steps=steps)


def _step(found: dict[str, Any], scenario: str) -> Step:
    unknown = found.keys() - _KNOWN
    if unknown:
        raise ValueError(f"{scenario}: {found.get('name')}: unknown {', '.join(sorted(unknown))}")
    if bool(found.get("excluded")) != ("expected" in found):
        raise ValueError(f"{scenario}: {found['name']}: `excluded` and `expected` go together")
    return Step(
        name=found["name"],
        method=found.get("method", "GET"),
        path=found.get("path", ""),
        query=found.get("query", {}),
        headers=found.get("headers", {}),
        body=_body(found),
        token=found.get("token", ""),
        save=found.get("save", {}),
        events=found.get("events"),
        pick=tuple(found.get("pick", ())),
        only=found.get("only", {}),
        restart=found.get("restart", False),
        excluded=found.get("excluded", ""),
        expected=found.get("expected"),
    )


def _body(found: Mapping[str, Any]) -> str | None:
    if "raw" in found:
        raw: str = found["raw"]
        return raw
    if "object" in found:
        document = copy.deepcopy(_object(found["object"]))
        for path, value in found.get("set", {}).items():
            _set(document, path, value)
        return json.dumps(document)
    return json.dumps(found["body"]) if "body" in found else None


@functools.cache
def _object(name: str) -> Any:
    return json.loads((CORPUS / "objects" / f"{name}.json").read_text())


def _set(document: Any, path: str, value: object) -> None:
    """Set one value; `metadata.finalizers`, `spec.containers.0.image`; missing objects are made."""
    *steps, last = path.split(".")
    place = document
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
    if isinstance(place, list):
        place[int(last)] = value
    elif value is None:
        place.pop(last, None)
    else:
        place[last] = value
