"""Run a training of `examples/gpu` with what a test does to it: `disturbed_training.py SCRIPT [OPTIONS]`.

The folder `$FAULTS` has a file `KIND-STEP-HOST` for each. It happens at the first step from STEP on, on that host, to
the process that removes the file, so once:

* `kill`: the process is killed;
* `hang`: it sleeps for ever;
* `stop`: it gets SIGTERM, as when its host is about to go;
* `pace`: stays; a step takes half a second while the file exists.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any


def disturb(folder: Path, step: int, host: int) -> None:
    for file in folder.iterdir():
        kind, begin, where = file.name.split("-")
        if step < int(begin) or host != int(where):
            continue
        if kind == "pace":
            time.sleep(0.5)
            continue
        try:
            file.unlink()
        except FileNotFoundError:
            continue
        if kind == "hang":
            time.sleep(1e6)
        os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGTERM)


def main() -> None:
    script = sys.argv[1]
    sys.path[0] = str(Path(script).parent)
    import corpus

    numbers = corpus.Corpus.numbers
    folder, host = Path(os.environ["FAULTS"]), int(os.environ["BASTION_HOST_INDEX"])

    def disturbed(self: Any, step: int) -> Any:
        disturb(folder, step, host)
        return numbers(self, step)

    corpus.Corpus.numbers = disturbed
    del sys.argv[0]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
