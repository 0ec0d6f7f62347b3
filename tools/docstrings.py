"""Count the docstring lines of the three packages: `python tools/docstrings.py [FOLDER]`.

A line counts from the opening to the closing quotes, blank lines included. FOLDER is another checkout.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGES = ("bastion", "scheduler", "quota")
_OWNERS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstring_lines(source: str) -> int:
    """The number of lines that docstrings take in a module's source."""
    count = 0
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, _OWNERS) or not node.body:
            continue
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            count += (first.end_lineno or first.lineno) - first.lineno + 1
    return count


def count(root: Path) -> dict[str, int]:
    """Docstring lines by folder: each package, and each folder of `bastion`."""
    found: dict[str, int] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            lines = docstring_lines(path.read_text("utf-8"))
            parts = path.relative_to(root).parts
            folder = "/".join(parts[:2]) if package == "bastion" and len(parts) > 2 else package
            found[folder] = found.get(folder, 0) + lines
    return found


def main(argv: list[str]) -> int:
    """Print the count of each folder and the total."""
    root = Path(argv[0]) if argv else Path(__file__).resolve().parents[1]
    found = count(root)
    for folder, lines in sorted(found.items()):
        sys.stdout.write(f"{lines:7,}  {folder}\n")
    sys.stdout.write(f"{sum(found.values()):7,}  in all\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
