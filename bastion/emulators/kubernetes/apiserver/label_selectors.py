"""The grammar of label selectors: apimachinery pkg/labels/selector.go (Lexer, Parser, NewRequirement).

Texts of errors too, since people read them in kubectl.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from bastion.emulators.kubernetes.apiserver import names

Test = Callable[[Mapping[str, str]], bool]

_SPECIAL = "=!(),<>"
_SYMBOLS = (")", ",", "!", "==", "=", ">", "(", "<", "!=")
_KEYWORDS = ("in", "notin")
_OPERATORS = ("in", "notin", "=", "==", "!=", ">", "<")
_OPERATOR_NAMES = "in, notin, =, ==, !=, gt, lt"
_IDENTIFIER, _END, _ERROR = "identifier", "end", "error"


class InvalidSelector(Exception):
    """The text is not a selector."""


class _Token(NamedTuple):
    kind: str
    text: str


def tests(text: str) -> list[Test]:
    """One test per requirement. Raises InvalidSelector."""
    parser = _Parser(_tokens(text))
    found: list[Test] = []
    while True:
        token = parser.peek()
        if token.kind == _END:
            return found
        if token.kind not in (_IDENTIFIER, "!"):
            raise InvalidSelector(f"found '{token.text}', expected: !, identifier, or 'end of string'")
        try:
            found.append(parser.requirement())
        except InvalidSelector as error:
            raise InvalidSelector(f"unable to parse requirement: {error}") from error
        token = parser.take()
        if token.kind == _END:
            return found
        if token.kind != ",":
            raise InvalidSelector(f"found '{token.text}', expected: ',' or 'end of string'")
        token = parser.peek()
        if token.kind not in (_IDENTIFIER, "!"):
            raise InvalidSelector(f"found '{token.text}', expected: identifier after ','")


def _tokens(text: str) -> list[_Token]:
    found, position = [], 0
    while position < len(text):
        character = text[position]
        start = position
        if character.isspace():
            position += 1
        elif character in _SPECIAL:
            while position < len(text) and text[start : position + 1] in _SYMBOLS:
                position += 1
            found.append(_Token(text[start:position], text[start:position]))
        else:
            while position < len(text) and text[position] not in _SPECIAL and not text[position].isspace():
                position += 1
            word = text[start:position]
            found.append(_Token(word if word in _KEYWORDS else _IDENTIFIER, word))
    return [*found, _Token(_END, "")]


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._position = 0

    def peek(self, *, operator: bool = False) -> _Token:
        """The next token; `in` and `notin` are keywords only where an operator may stand."""
        token = self._tokens[min(self._position, len(self._tokens) - 1)]
        return token if operator or token.kind not in _KEYWORDS else _Token(_IDENTIFIER, token.text)

    def take(self, *, operator: bool = False) -> _Token:
        token = self.peek(operator=operator)
        self._position += 1
        return token

    def requirement(self) -> Test:
        token = self.take()
        absent = token.kind == "!"
        if absent:
            token = self.take()
        if token.kind != _IDENTIFIER:
            raise InvalidSelector(f"found '{token.text}', expected: identifier")
        key = token.text
        _check_key(key)
        if absent:
            return lambda labels: key not in labels
        if self.peek().kind in (_END, ","):
            return lambda labels: key in labels
        operator = self.take(operator=True)
        if operator.kind not in _OPERATORS:
            raise InvalidSelector(f"found '{operator.text}', expected: {_OPERATOR_NAMES}")
        values = self._listed() if operator.kind in _KEYWORDS else [self._exact()]
        return _test(key, operator.kind, values)

    def _listed(self) -> list[str]:
        token = self.take()
        if token.kind != "(":
            raise InvalidSelector(f"found '{token.text}' expected: '('")
        if self.peek().kind == ")":
            # Upstream takes `()` for a list with one empty value.
            self.take()
            return [""]
        if self.peek().kind not in (_IDENTIFIER, ","):
            raise InvalidSelector(f"found '{self.peek().text}', expected: ',', ')' or identifier")
        values: list[str] = []
        while True:
            token = self.peek()
            if token.kind == _IDENTIFIER:
                values.append(self.take().text)
                if self.peek().kind not in (",", ")"):
                    raise InvalidSelector(f"found '{self.peek().text}', expected: ',' or ')'")
            elif token.kind == ",":
                self.take()
                if self.peek().kind in (",", ")"):
                    values.append("")
                elif self.peek().kind != _IDENTIFIER:
                    raise InvalidSelector(f"found '{self.peek().text}', expected: ',', or identifier")
            else:
                self.take()
                return values

    def _exact(self) -> str:
        if self.peek().kind in (_END, ","):
            return ""
        token = self.take()
        if token.kind != _IDENTIFIER:
            raise InvalidSelector(f"found '{token.text}', expected: identifier")
        return token.text


def _check_key(key: str) -> None:
    if why := names.qualified(key):
        raise InvalidSelector(f'<nil>: Invalid value: "{key}": {"; ".join(why)}')


def _test(key: str, operator: str, values: list[str]) -> Test:
    for index, value in enumerate(sorted(values)):
        if why := names.label_value(value):
            raise InvalidSelector(f'values[{index}][{key}]: Invalid value: "{value}": {"; ".join(why)}')
    wanted = frozenset(values)
    match operator:
        case "in" | "=" | "==":
            if not values:
                raise InvalidSelector(
                    "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"
                )
            return lambda labels: key in labels and labels[key] in wanted
        case "notin" | "!=":
            if not values:
                raise InvalidSelector(
                    "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty"
                )
            return lambda labels: labels.get(key) not in wanted
        case _:
            return _ordered(key, operator, values[0])


def _ordered(key: str, operator: str, text: str) -> Test:
    limit = _integer(text)
    if limit is None:
        raise InvalidSelector(
            f"values[0]: Invalid value: \"{text}\": for 'Gt', 'Lt' operators, the value must be an integer"
        )

    def test(labels: Mapping[str, str]) -> bool:
        value = _integer(labels.get(key, ""))
        assert limit is not None
        return value is not None and (value > limit if operator == ">" else value < limit)

    return test


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
