"""Print bench.toml without the frameworks that are not installed here: `python3 installed.py > FILE`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

LIST = "framework = "


def main() -> None:
    missing = []
    for line in (Path(__file__).parent / "bench.toml").read_text("utf-8").splitlines():
        text = line
        if line.startswith(LIST):
            frameworks = json.loads(line.removeprefix(LIST))
            missing = [name for name in frameworks if importlib.util.find_spec(name) is None]
            text = LIST + json.dumps([name for name in frameworks if name not in missing])
        if not any(f'{LIST}"{name}"' in text for name in missing):
            print(text)
    if missing:
        print(f"leaving out {', '.join(missing)}: not installed in {sys.executable}", file=sys.stderr)


if __name__ == "__main__":
    main()
