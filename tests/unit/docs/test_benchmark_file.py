"""`docs/reference/benchmark-file.md` has every key, and the example of the how-to is a valid file."""

from __future__ import annotations

import re
from pathlib import Path

from bastion.benchmark import file, file_problems, matrix

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_has_every_key_of_the_file() -> None:
    page = (DOCS / "reference" / "benchmark-file.md").read_text("utf-8")
    tables = {"run": file.Run, "environment": file.Environment, "budget": file.Budget}
    wanted = [name for name in file.File.model_fields if name not in (*tables, "metrics", "matrix")]
    wanted += [f"{table}.{name}" for table, model in tables.items() for name in model.model_fields]
    wanted += [f"metrics.NAME.{name}" for name in file.Metric.model_fields]
    wanted += ["[matrix]", "matrix.exclude"]
    assert [name for name in wanted if f"| `{name}` |" not in page] == []


def test_the_example_of_the_how_to_is_valid() -> None:
    page = (DOCS / "how-to" / "benchmark.md").read_text("utf-8")
    (text,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    found = file_problems.read(text.encode())
    assert len(matrix.cells(found)) == 6
