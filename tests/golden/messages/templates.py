"""The generated messages of a package, from its source: every text that people may read, with its fields in braces.

`python tests/golden/messages/templates.py` writes the golden file anew.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
GOLDEN = Path(__file__).with_name("core.txt")
# Modules of the core and the daemon whose texts reach people: history lines, endings, refusals, alarms.
FOLDERS = ("bastion/core", "bastion/daemon")
_WORDS = re.compile(r"[A-Za-z']{2,}[,:;]? [A-Za-z'({]")


def _docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def _template(node: ast.expr) -> str:
    """The text with each field as its source."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_template, node.values))
    if isinstance(node, ast.FormattedValue):
        return "{" + _field(node.value) + "}"
    assert isinstance(node, ast.Constant)
    return str(node.value)


def _field(node: ast.expr) -> str:
    """A field in short, and the same under every version of Python."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name):
            return f"{_field(owner)}.{name}"
        case ast.Subscript(value=owner):
            return _field(owner)
        case ast.Call(func=function):
            return f"{_field(function)}()"
        case _:
            return "..."


def templates(source: str) -> list[str]:
    """Every message template of a module, in the order in which they appear."""
    tree = ast.parse(source)
    skipped = set(map(id, _docstrings(tree)))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(inner) for inner in ast.walk(node) if inner is not node and not _is_message(inner, node)}
    found = [
        (node.lineno, node.col_offset, _template(node))
        for node in ast.walk(tree)
        if id(node) not in skipped
        and (isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)))
    ]
    return [text for _, _, text in sorted(found) if _WORDS.search(text)]


def _is_message(node: ast.AST, outer: ast.JoinedStr) -> bool:
    """Whether it is a text of its own inside a field of `outer`."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and node not in outer.values)


def render() -> str:
    """The golden file: a line for every template, by module."""
    lines = []
    for folder in FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            found = templates(path.read_text("utf-8"))
            if found:
                lines += ["", f"# {path.relative_to(REPOSITORY)}", *(text.replace("\n", "\\n") for text in found)]
    return "\n".join(lines[1:]) + "\n"


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(render(), "utf-8")
