"""Evaluate the part of Terraform's expression language that `deploy/terraform/modules/bucket` uses.

Literals, templates, references with indexes and splats, `for`, conditionals, `==` and `!=`, and functions that the
caller gives. docs/language/expressions of hashicorp/terraform.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_TOKEN = re.compile(r"\s*(?:(=>|==|!=|[\[\]{}().,:?=*])|(\d+)|([A-Za-z_][\w-]*)|(\"))")

Functions = Mapping[str, Callable[..., Any]]
Scope = Mapping[str, Any]


class NotEvaluated(ValueError):
    """An expression outside of this part of the language."""


def evaluated(value: Any, scope: Scope, functions: Functions) -> Any:
    """What a value of python-hcl2 means: a quoted template, `${...}`, or a structure of them."""
    if isinstance(value, dict):
        return {
            str(evaluated(key, scope, functions)) if key.startswith('"') else key: evaluated(inner, scope, functions)
            for key, inner in value.items()
            if not key.startswith("__")
        }
    if isinstance(value, list):
        return [evaluated(inner, scope, functions) for inner in value]
    if not isinstance(value, str):
        return value
    text = value[2:-1] if value.startswith("${") and value.endswith("}") else value
    parser = _Parser(text, functions)
    found = parser.expression()(scope)
    parser.end()
    return found


_Node = Callable[[Scope], Any]


class _Parser:
    """A recursive descent; each method returns what computes the value in a scope."""

    def __init__(self, text: str, functions: Functions) -> None:
        self._text = text
        self._functions = functions
        self._position = 0

    def end(self) -> None:
        if self._text[self._position :].strip():
            raise NotEvaluated(f"cannot read on at {self._text[self._position :][:60]!r}")

    def _peek(self) -> str:
        match = _TOKEN.match(self._text, self._position)
        return match[match.lastindex] if match and match.lastindex else ""

    def _next(self, wanted: str = "") -> str:
        match = _TOKEN.match(self._text, self._position)
        if match is None or match.lastindex is None or (wanted and match[match.lastindex] != wanted):
            raise NotEvaluated(f"expected {wanted or 'a value'} at {self._text[self._position :][:60]!r}")
        self._position = match.end()
        return match[match.lastindex]

    def expression(self) -> _Node:
        node = self._operand()
        if self._peek() in ("==", "!="):
            is_equal, right = self._next() == "==", self._operand()
            left = node
            node = lambda scope: (left(scope) == right(scope)) is is_equal  # noqa: E731
        if self._peek() == "?":
            self._next()
            condition, then = node, self.expression()
            self._next(":")
            other = self.expression()
            return lambda scope: then(scope) if condition(scope) else other(scope)
        return node

    def _operand(self) -> _Node:
        token = self._next()
        node: _Node
        if token == '"':
            node = self._template()
        elif token.isdigit():
            node = lambda _: int(token)  # noqa: E731
        elif token == "[":
            node = self._list()
        elif token == "{":
            node = self._object()
        elif token == "(":
            node = self.expression()
            self._next(")")
        elif token in ("true", "false", "null"):
            node = lambda _: {"true": True, "false": False, "null": None}[token]  # noqa: E731
        elif self._peek() == "(":
            node = self._call(token)
        else:
            node = lambda scope: scope[token]  # noqa: E731
        return self._steps(node)

    def _steps(self, node: _Node) -> _Node:
        while self._peek() in (".", "["):
            if self._next() == ".":
                node = _attribute(node, self._next())
            elif self._peek() == "*":
                self._next()
                self._next("]")
                rest = self._steps(lambda scope: scope["each element"])
                return _each(node, rest)
            else:
                node = _item(node, self.expression())
                self._next("]")
        return node

    def _template(self) -> _Node:
        """The rest of a quoted template, of literal parts and `${...}`."""
        parts: list[_Node] = []
        literal = ""
        while (char := self._text[self._position]) != '"':
            if char == "\\":
                literal += json.loads(f'"{self._text[self._position : self._position + 2]}"')
                self._position += 2
            elif self._text.startswith("${", self._position):
                parts.append(_constant(literal))
                literal = ""
                self._position += 2
                parts.append(self.expression())
                self._next("}")
            else:
                literal += char
                self._position += 1
        self._position += 1
        parts.append(_constant(literal))
        return lambda scope: "".join(str(part(scope)) for part in parts)

    def _list(self) -> _Node:
        if self._peek() == "for":
            names, source = self._for()
            element = self.expression()
            self._next("]")
            return lambda scope: [element({**scope, **bound}) for bound in _bindings(names, source(scope))]
        elements: list[_Node] = []
        while self._peek() != "]":
            elements.append(self.expression())
            if self._peek() == ",":
                self._next()
        self._next("]")
        return lambda scope: [element(scope) for element in elements]

    def _object(self) -> _Node:
        if self._peek() == "for":
            names, source = self._for()
            key = self.expression()
            self._next("=>")
            value = self.expression()
            self._next("}")
            return lambda scope: {
                key({**scope, **bound}): value({**scope, **bound}) for bound in _bindings(names, source(scope))
            }
        fields: dict[str, _Node] = {}
        while self._peek() != "}":
            name = self._next()
            self._next("=")
            fields[name] = self.expression()
            if self._peek() == ",":
                self._next()
        self._next("}")
        return lambda scope: {name: node(scope) for name, node in fields.items()}

    def _for(self) -> tuple[list[str], _Node]:
        self._next("for")
        names = [self._next()]
        while self._peek() == ",":
            self._next()
            names.append(self._next())
        self._next("in")
        source = self.expression()
        self._next(":")
        return names, source

    def _call(self, name: str) -> _Node:
        function = self._functions.get(name)
        if function is None:
            raise NotEvaluated(f"the function {name} is not known here")
        self._next("(")
        arguments: list[_Node] = []
        while self._peek() != ")":
            arguments.append(self.expression())
            if self._peek() == ",":
                self._next()
        self._next(")")
        return lambda scope: function(*(argument(scope) for argument in arguments))


def _constant(text: str) -> _Node:
    return lambda _: text


def _attribute(node: _Node, name: str) -> _Node:
    return lambda scope: node(scope)[name]


def _item(node: _Node, key: _Node) -> _Node:
    return lambda scope: node(scope)[key(scope)]


def _each(node: _Node, rest: _Node) -> _Node:
    return lambda scope: [rest({**scope, "each element": element}) for element in node(scope)]


def _bindings(names: list[str], source: Any) -> list[dict[str, Any]]:
    """What a `for` binds: an element, or a key and a value."""
    if len(names) == 1:
        return [{names[0]: value} for value in (source.values() if isinstance(source, dict) else source)]
    pairs = source.items() if isinstance(source, dict) else enumerate(source)
    return [dict(zip(names, pair, strict=True)) for pair in pairs]
