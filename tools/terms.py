"""Reject retired terms in identifiers, docstrings, comments, messages and pages: `python tools/terms.py [--pending]`.

`retired_terms.txt` has the terms, what to say instead, where each is checked, and the names on the wire that stay.
Exits with 1 and one line per use: `FILE:LINE: "wish" is retired; say "request"`.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TERMS = Path(__file__).with_name("retired_terms.txt")
PACKAGES = ("bastion", "scheduler", "quota")
# Records keep the words of their time; generated pages say what the code says, which is checked there.
UNCHECKED = (
    *("docs/adr/", "docs/development/faults-mended.md", "docs/development/mutants.md"),
    *("docs/reference/cli.md", "docs/reference/limits.md", "docs/reference/slice-states.md"),
)
PLACES = ("names", "text", "docs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A retired term: its spellings, the term in use, and where it is checked."""

    spellings: tuple[str, ...]
    instead: str
    places: frozenset[str]
    pending: frozenset[str]
    allowed: tuple[str, ...]

    def uses(self, text: str) -> list[str]:
        """The spellings that occur in prose, outside of backticks, quoted keys and what is allowed."""
        text = re.sub(r"`[^`]*`", " ", text)
        for name in self.allowed:
            text = text.replace(name, " ")
        return [
            word for word in self.spellings if re.search(rf"(?<![\w/-]){re.escape(word)}(?![\w/])", text, re.IGNORECASE)
        ]

    def in_name(self, name: str) -> bool:
        """Whether a part of an identifier is a spelling of the term."""
        if name in self.allowed:
            return False
        parts = "_" + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_") + "_"
        return any("_" + word.replace(" ", "_") + "_" in parts for word in self.spellings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A name or a text in the tree."""

    place: str
    path: str
    line: int
    text: str


def read_terms(text: str) -> list[Term]:
    """The terms of `retired_terms.txt`.

    Raises:
        ValueError: A line does not have four fields, or names an unknown place.
    """
    terms = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 4 or not {place.lstrip("~") for place in fields[2].split()} <= set(PLACES):
            raise ValueError(f"not a line of four fields with known places: {line}")
        places = fields[2].split()
        terms.append(
            Term(
                spellings=tuple(word.strip() for word in fields[0].split(",")),
                instead=fields[1],
                places=frozenset(place for place in places if not place.startswith("~")),
                pending=frozenset(place[1:] for place in places if place.startswith("~")),
                allowed=tuple(name.strip() for name in fields[3].split(",") if name.strip()),
            )
        )
    return terms


def python_uses(path: str, source: str) -> Iterator[Use]:
    """The identifiers that a module defines, its docstrings, comments and messages.

    A string without a space is a key or a name on the wire, and is not text.
    """
    yield Use(place="names", path=path, line=1, text=Path(path).stem)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield Use(place="names", path=path, line=node.lineno, text=node.name)
            case ast.arg():
                yield Use(place="names", path=path, line=node.lineno, text=node.arg)
            case ast.Name(ctx=ast.Store()):
                yield Use(place="names", path=path, line=node.lineno, text=node.id)
            case ast.Attribute(ctx=ast.Store()):
                yield Use(place="names", path=path, line=node.lineno, text=node.attr)
            case ast.Constant(value=str() as text) if " " in text.strip():
                for offset, line in enumerate(text.split("\n")):
                    yield Use(place="text", path=path, line=node.lineno + offset, text=line)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Use(place="text", path=path, line=token.start[0], text=token.string)


def page_uses(path: str, text: str) -> Iterator[Use]:
    """The prose of a page, without code blocks and the targets of links."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            code = not code
        elif not code:
            yield Use(place="docs", path=path, line=number, text=re.sub(r"\]\([^)]*\)", "]", line))


def uses(root: Path) -> Iterator[Use]:
    """Everything that is checked in a checkout."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield from python_uses(str(path.relative_to(root)), path.read_text("utf-8"))
    for path in [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]:
        name = str(path.relative_to(root))
        if not name.startswith(UNCHECKED):
            yield from page_uses(name, path.read_text("utf-8"))


def findings(terms: list[Term], said: Iterator[Use], *, pending: bool = False) -> list[str]:
    """One line per use of a retired term; with `pending`, of those that are not enforced yet."""
    found = []
    for use in said:
        for term in terms:
            if use.place not in (term.pending if pending else term.places):
                continue
            words = [use.text] if use.place == "names" and term.in_name(use.text) else []
            if use.place != "names":
                words = term.uses(use.text)
            found += [f'{use.path}:{use.line}: "{word}" is retired; say "{term.instead}"' for word in words]
    return found


def main(argv: list[str]) -> int:
    """Print the findings; 1 if there are any that are enforced."""
    pending = "--pending" in argv
    found = findings(read_terms(TERMS.read_text("utf-8")), uses(ROOT), pending=pending)
    sys.stdout.write("".join(line + "\n" for line in found))
    return int(bool(found) and not pending)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
