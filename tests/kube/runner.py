"""Send a scenario to a server, and gather its normalized answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

from tests.kube.answers import at, normal
from tests.kube.scenarios import Scenario, Step, fill

_SECONDS = 10


class Target(Protocol):
    """Where an API server listens, and its authority's certificate."""

    server: str
    token: str
    ca_file: str


class Runner:
    """Sends scenarios to one server.

    Args:
        target: The server.
        restart: Restarts it at the same address; older versions are gone then.
    """

    def __init__(self, target: Target, restart: Callable[[], None]) -> None:
        self._target = target
        self._restart = restart
        self._context = ssl.create_default_context(cafile=target.ca_file)

    def run(self, scenario: Scenario) -> dict[str, dict[str, Any]]:
        """The answers by the steps' names.

        Raises AssertionError if an answer does not end, or lacks what a later step needs.
        """
        variables = {"ns": f"corpus-{scenario.name}"}
        self._make_namespace(variables["ns"])
        answers = {}
        for step in scenario.steps:
            if step.restart:
                self._restart()
                continue
            answers[step.name] = self._step(step, variables)
        return answers

    def _make_namespace(self, name: str) -> None:
        document = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        headers = {"Content-Type": "application/json"}
        code, _, text = self._send(
            "POST", "/api/v1/namespaces", headers, json.dumps(document), self._target.token, None
        )
        assert code == 201, text

    def _step(self, step: Step, variables: dict[str, str]) -> dict[str, Any]:
        query = urlencode({key: fill(value, variables) for key, value in step.query.items()})
        path = fill(step.path, variables) + (f"?{query}" if query else "")
        headers = {key: fill(value, variables) for key, value in step.headers.items()}
        body = None if step.body is None else fill(step.body, variables)
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        token = self._target.token if step.token == "" else step.token
        code, received, text = self._send(step.method, path, headers, body, token, step.events)
        for variable, pointer in step.save.items():
            variables[variable] = _saved(text, pointer, f"{step.name}: {code} {text[:300]}")
        return normal(step, code, received, text)

    def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: str | None, token: str | None, lines: int | None
    ) -> tuple[int, dict[str, str], str]:
        """One request on a connection of its own; reads `lines` lines of the answer, or all of it."""
        address = urlsplit(self._target.server)
        assert address.hostname is not None
        connection = http.client.HTTPSConnection(
            address.hostname, address.port, timeout=_SECONDS, context=self._context
        )
        authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            connection.request(method, path, None if body is None else body.encode(), {**authorization, **headers})
            answer = connection.getresponse()
            text = answer.read() if lines is None else _lines(answer, lines)
            return answer.status, {key.lower(): value for key, value in answer.getheaders()}, text.decode()
        except TimeoutError as error:
            raise AssertionError(f"{method} {path}: the answer did not end within {_SECONDS} s") from error
        finally:
            connection.close()


def _lines(answer: http.client.HTTPResponse, count: int) -> bytes:
    """So many lines, or fewer if no more come."""
    found = []
    with contextlib.suppress(TimeoutError):
        for _ in range(count):
            found.append(answer.readline())  # noqa: PERF401 - what came before the timeout counts
    return b"".join(found)


def _saved(text: str, pointer: str, where: str) -> str:
    pointer, plus, number = pointer.partition(" + ")
    try:
        value = at(json.loads(text.splitlines()[-1]), pointer)
    except (ValueError, IndexError):
        value = None
    assert value is not None, f"the answer has no {pointer}: {where}"
    return str(int(value) + int(number)) if plus else str(value)
