"""Files of benchmarks for tests."""

from __future__ import annotations

from dataclasses import dataclass

from bastion.benchmark import file_problems
from bastion.benchmark.file import Benchmark
from bastion.benchmark.members import Place
from bastion.testing.cluster import BASTION, ROOT

TEXT = """
name = "matmul"
project = "a"
repeats = 3

[matrix]
size = [1024, 4096]
slice = ["tpu-v4-8", "tpu-v4-16"]
exclude = [{size = 1024, slice = "tpu-v4-16"}]

[run]
command = "python3 matmul.py --size={size}"
instance_type = "{slice}"
max_run = "20m"
deadline = "6h"

[environment]
up = ["make up"]
down = ["make down"]

[metrics.seconds]
unit = "s"
better = "lower"
"""


def text(*changes: tuple[str, str]) -> str:
    """Return the file with texts replaced; each must be in it."""
    changed = TEXT
    for old, new in changes:
        assert old in changed, old
        changed = changed.replace(old, new)
    return changed


def benchmark(*changes: tuple[str, str]) -> Benchmark:
    return file_problems.read(text(*changes).encode())


@dataclass(frozen=True, slots=True)
class SimulatedRoot:
    """The ROOT of `bastion.testing.cluster`, spelled as its daemon spells it."""

    url: str = ROOT
    bastion: str = BASTION
    local: bool = True


PLACE = Place(root_url=ROOT, bastion=BASTION, project="a", user="alice")
