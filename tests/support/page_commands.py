"""The commands in the `bash` blocks of a page."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any


def commands(page: str, program: str) -> list[list[str]]:
    """The words of every command line of that program, with the page's own variables filled in; a pipe ends one."""
    variables: dict[str, str] = {}
    found = []
    for block in re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            filled = re.sub(r"\$\{(\w+)#serviceAccount:\}", lambda found: variables[found[1]].partition(":")[2], line)
            filled = re.sub(r"\$([A-Z_]+)", lambda found: variables.get(found[1], found[0]), filled)
            words = shlex.split(filled)
            if words[:1] == ["export"]:
                name, _, value = words[1].partition("=")
                variables[name] = "f" * 64 if value.startswith("$(") else value
            found.extend(part[1:] for part in _parts(words) if part[:1] == [program])
    return found


def _parts(words: list[str]) -> list[list[str]]:
    """The commands of a pipeline; what follows `--` belongs to its command."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "|" and "--" not in parts[-1]:
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def gcloud_name(words: list[str], known: Mapping[str, Set[str]]) -> str:
    """Which command of the table it is, by its longest name."""
    fitting = [name for name in known if words[: name.count(" ") + 1] == name.split()]
    assert fitting, f"gcloud {shlex.join(words)} is no command that this test knows"
    return max(fitting, key=len)


def flags_of(words: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in words if word.startswith("-")}


def gcloud_completions() -> dict[str, Any] | None:
    """The tree of commands of the installed gcloud; None without one."""
    program = shutil.which("gcloud")
    table = Path(program).resolve().parents[1] / "data" / "cli" / "gcloud_completions.py" if program else None
    if table is None or not table.exists():
        return None
    spec = importlib.util.spec_from_file_location("gcloud_completions", table)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    tree: dict[str, Any] = module.STATIC_COMPLETION_CLI_TREE
    return tree


def flags_that_gcloud_has(tree: Mapping[str, Any], name: str) -> set[str]:
    found = set(tree["flags"])
    node: Any = tree
    for word in name.split():
        node = node["commands"][word]
    return found | set(node["flags"])
