"""The programs in the page on the object format, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "object-format.md"


def programs() -> list[str]:
    """The page's Python, in its order: decryption, Cloud KMS, the keyring."""
    return re.findall(r"^```python\n(.*?)^```", _PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def run(*sources: str) -> dict[str, Any]:
    """The names that these programs define, run one after the other."""
    names: dict[str, Any] = {}
    for source in sources:
        exec(compile(source, str(_PAGE), "exec"), names)
    return names
