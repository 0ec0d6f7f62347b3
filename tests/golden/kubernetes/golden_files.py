"""Files that hold what the program writes, for a review of each change. `BASTION_GOLDEN=rewrite` rewrites them."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = Path(__file__).parent


def check(name: str, text: str) -> None:
    file = _FOLDER / name
    if os.environ.get("BASTION_GOLDEN") == "rewrite":
        file.write_text(text, "utf-8")
    assert file.read_text("utf-8") == text, f"{name} differs; rewrite it with BASTION_GOLDEN=rewrite and review it"


def names(suffix: str) -> set[str]:
    return {path.name for path in _FOLDER.iterdir() if path.suffix == suffix}
