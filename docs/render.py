"""Renders the pages that follow from the code: `python docs/render.py` writes them, `--check` fails if one is stale."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from bastion.cli import reference
from bastion.core import limits
from bastion.core.lifecycle import TRANSITIONS

DOCS = Path(__file__).resolve().parent
LIMITS = Path(limits.__file__)


def limits_page() -> str:
    """Every constant of `bastion/core/limits.py` with its value and the comment above it."""
    lines = [
        "# Limits",
        "",
        "Generated from `bastion/core/limits.py`. A limit exists because something breaks, costs money or harms others",
        "beyond it.",
        "",
        "| limit | value | why |",
        "|---|---|---|",
    ]
    why: list[str] = []
    for line in LIMITS.read_text("utf-8").splitlines():
        constant = re.fullmatch(r"([A-Z][A-Z_0-9]*) = .+", line)
        if constant:
            value = getattr(limits, constant[1])
            lines.append(f"| `{constant[1]}` | {value:,} | {' '.join(why)} |")
            why = []
        elif line.startswith("# "):
            why.append(line[2:])
        else:
            why = []
    return "\n".join(lines) + "\n"


def transitions_table() -> str:
    rows = [f"| {before.value} | {after.value} | {when} |" for (before, after), when in TRANSITIONS.items()]
    return "\n".join(["| from | to | when |", "|---|---|---|", *rows]) + "\n"


def between(page: str, name: str, content: str) -> str:
    """The page with what lies between its `name:begin` and `name:end` marks replaced."""
    pattern = re.compile(rf"(<!-- {name}:begin[^\n]*-->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    return pattern.sub(lambda match: match[1] + content + match[2], page)


def pages() -> dict[Path, str]:
    """Every generated page with the text it should have."""
    concepts = DOCS / "concepts.md"
    return {
        DOCS / "reference" / "limits.md": limits_page(),
        DOCS / "reference" / "cli.md": reference.render(),
        concepts: between(concepts.read_text("utf-8"), "transitions", transitions_table()),
    }


def main(argv: list[str]) -> int:
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in argv:
        for path in stale:
            sys.stderr.write(f"{path} is stale; run `make docs`\n")
        return bool(stale)
    for path in stale:
        path.write_text(pages()[path], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
