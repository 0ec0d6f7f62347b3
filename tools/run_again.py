"""Run again, alone, the few tests that failed in the last run of the suite; exit 0 if all pass, and name them.

Four workers share two cores with thousands of processes that the tests start, and now and then one of 14,000 tests
meets a pause that it does not expect. Such a test is a fault to mend, in itself or in what it tests; but it must not
keep everything else from landing. More than a few failures are no accident.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
AT_MOST = 3


def main() -> int:
    failed = sorted(json.loads(FAILED.read_text())) if FAILED.exists() else []
    if not 0 < len(failed) <= AT_MOST:
        return 1
    _say(f"running again, alone: {' '.join(failed)}")
    code = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", *failed], check=False).returncode
    if code == 0:
        _say(f"passed when run alone, so they depend on what else runs: mend {' '.join(failed)}")
    return code


def _say(text: str) -> None:
    sys.stdout.write(f"make test: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
