"""The report of a run: the same bytes twice, nothing from elsewhere, and no text of a job that the page believes."""

from __future__ import annotations

import csv
import html.parser
import importlib.util
import io
import random
import re

import pytest

from bastion.benchmark import layout
from bastion.benchmark.layout import Better, Cell, CellResult, Matrix, Metric, Outcome, Summary
from bastion.benchmark.measurements import read_run
from bastion.benchmark.report import pictures
from bastion.benchmark.report.writing import report_files, write_report
from bastion.core.bucket.results import Environment
from bastion.testing.memory_store import MemoryStore
from tests.support.simulated_benchmarks import METRIC, documents, luck, matrix_of, result_of, store_run

HOSTILE = '</td><script>alert("x")</script><img src=http://evil.example/x onerror=alert(1)>\x1b[31m $\\frac$ |`'


def sized(run: str = "A", repeats: int = 6, *, sizes: tuple[int, ...] = (1, 2, 64)) -> Matrix:
    """A matrix of two frameworks and some sizes."""
    names = [(framework, size) for framework in ("jax", "torch") for size in sizes]
    matrix = matrix_of([f"{framework}_{size}" for framework, size in names], repeats, run=run)
    cells = [
        cell.model_copy(update={"variables": {"framework": framework, "size": size}})
        for cell, (framework, size) in zip(matrix.cells, names, strict=True)
    ]
    return matrix.model_copy(update={"cells": cells})


def stored(*runs: str) -> tuple[MemoryStore, list[Matrix]]:
    store, draw = MemoryStore(), random.Random(1)
    matrices = [sized(run) for run in runs]
    for matrix in matrices:
        store_run(store, matrix, documents(draw, matrix, luck(draw, 2), processor="EPYC"))
    return store, matrices


def files_of(matrix: Matrix, *results: CellResult | bytes | None) -> dict[str, str]:
    store = MemoryStore()
    store_run(store, matrix, results)
    return files_of_store(store, matrix)


def files_of_store(store: MemoryStore, matrix: Matrix) -> dict[str, str]:
    run = read_run(store, matrix.name, matrix.run)
    return {name: data.decode() for name, data in report_files(store, run).items()}


class _Page(html.parser.HTMLParser):
    """What a browser would load or run of a page, and its links."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.policy = ""
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        given = dict(attrs)
        if tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""

    def handle_data(self, data: str) -> None:
        self.text += data

    def references(self) -> list[str]:
        return [
            value
            for _, name, value in self.attributes
            if name in ("href", "xlink:href", "src", "srcset", "data", "action", "poster", "background")
        ]


def test_the_same_run_makes_the_same_bytes() -> None:
    store, (matrix,) = stored("A")
    first = report_files(store, read_run(store, matrix.name, matrix.run))
    second = report_files(store, read_run(store, matrix.name, matrix.run))
    assert first == second
    assert set(first) == {"index.html", "report.md", "report.csv", "summary.json"}


def test_a_second_report_replaces_the_first_with_the_same_bytes() -> None:
    store, (matrix,) = stored("A")
    write_report(store, matrix.name, matrix.run)
    key = layout.report(matrix.name, matrix.run, "index.html")
    before = store.get(key).data
    write_report(store, matrix.name, matrix.run)
    assert store.get(key).data == before


def test_the_page_asks_no_other_host_and_runs_nothing() -> None:
    store, (_, matrix) = stored("A", "B")
    write_report(store, "sim", sized("A").run)
    text = report_files(store, read_run(store, matrix.name, matrix.run))["index.html"].decode()
    page = _Page(text)
    assert page.policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "script" not in page.tags
    assert all(each.startswith(("#", "../../../../logs/")) for each in page.references())
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert not re.findall(r"url\((?!#)|@import", text)
    # What is left of addresses are names of formats, which nothing fetches.
    assert set(re.findall(r"https?://[^\"' ]+", text)) <= {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}


def test_light_and_dark_pages_have_the_same_pictures() -> None:
    store, (matrix,) = stored("A")
    text = report_files(store, read_run(store, matrix.name, matrix.run))["index.html"].decode()
    assert "prefers-color-scheme: dark" in text
    pictures_only = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "var(--ink)" in pictures_only
    assert not re.findall(r"#[0-9a-f]{6}\b(?!\")", pictures_only)


def test_texts_of_jobs_are_shown_and_not_believed() -> None:
    terms = Metric(unit=HOSTILE, better=Better.LOWER)
    matrix = matrix_of(["a", "b"], 1, metrics={METRIC: terms})
    cells = [cell.model_copy(update={"variables": {HOSTILE: HOSTILE}}) for cell in matrix.cells]
    matrix = matrix.model_copy(update={"cells": cells, "user": HOSTILE, "project": HOSTILE})
    files = files_of(
        matrix,
        result_of("a", 1, outcome=Outcome.FAILED, reason=HOSTILE, job=HOSTILE, logs="javascript:alert(1)"),
        result_of(
            "b",
            1,
            2.0,
            logs="logs/../../x",
            reason=HOSTILE,
            environment=Environment(place=HOSTILE, processor=HOSTILE, libraries={HOSTILE: HOSTILE}),
        ),
    )
    page = _Page(files["index.html"])
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert 'alert("x")' in page.text
    assert all(each.startswith("#") for each in page.references())
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert all("\x1b" not in text for text in files.values())
    assert "<script>" not in files["report.md"]
    assert r"\<script\>" in files["report.md"]


def test_a_table_cell_of_a_spreadsheet_is_no_formula() -> None:
    matrix = matrix_of(["a"], 1)
    files = files_of(matrix, result_of("a", 1, outcome=Outcome.FAILED, reason='=HYPERLINK("http://evil.example")'))
    (row,) = csv.DictReader(io.StringIO(files["report.csv"]))
    assert row["problem"].startswith("'=HYPERLINK")
    assert (row["cell"], row["repeat"], row["outcome"], row["value"]) == ("a", "1", "failed", "")


def test_a_failed_job_has_its_reason_and_a_link_to_its_logs() -> None:
    files = files_of(
        matrix_of(["a", "b"], 1),
        result_of("a", 1, outcome=Outcome.FAILED, reason="exited with code 1", logs="logs/sim-a-1.d/abcdefghij-1/"),
        result_of("b", 1, 1.0),
    )
    assert "1 of 2 jobs did not measure everything" in files["index.html"]
    assert "<td>exited with code 1</td>" in files["index.html"]
    assert '<a href="../../../../logs/sim-a-1.d/abcdefghij-1/">logs</a>' in files["index.html"]
    assert "| a | 1 | sim-0-1 | failed | exited with code 1 |" in files["report.md"]


def test_a_run_without_any_value_has_a_report() -> None:
    files = files_of(matrix_of(["a"], 2), None, None)
    assert "2 of 2 jobs did not measure everything" in files["index.html"]
    assert "<td>no result is there; the run may still go on, or someone deleted it</td>" in files["index.html"]


@pytest.mark.parametrize("value", [0.0, -3.5, 1e-100, 1e100, -1e100])
def test_numbers_of_all_sizes_are_drawn(value: float) -> None:
    files = files_of(matrix_of(["a", "b"], 1), result_of("a", 1, value), result_of("b", 1, 5.0))
    assert files["index.html"].count("<svg ") >= 1


def captions(text: str) -> list[str]:
    return re.findall(r"<figcaption>(.*?)</figcaption>", text)


def test_sizes_are_drawn_as_scaling_and_earlier_runs_as_history() -> None:
    store, matrices = stored("A", "B", "C")
    for matrix in matrices[:2]:
        write_report(store, matrix.name, matrix.run)
    text = report_files(store, read_run(store, "sim", matrices[2].run))["index.html"].decode()
    assert captions(text) == [
        "All jobs, with medians and intervals",
        "Medians over size",
        "The last 3 runs of sim",
    ]
    # A report of the past does not know what came later.
    text = report_files(store, read_run(store, "sim", matrices[0].run))["index.html"].decode()
    assert captions(text)[-1] == "Medians over size"


def test_instance_types_are_sizes() -> None:
    matrix = matrix_of(["a", "b"], 1)
    types = ["tpu-v4-8", "tpu-v4-32"]
    cells = [
        Cell(cell=cell.cell, variables={"slice": of}, repeats=cell.repeats)
        for cell, of in zip(matrix.cells, types, strict=True)
    ]
    files = files_of(matrix.model_copy(update={"cells": cells}), result_of("a", 1, 1.0), result_of("b", 1, 0.3))
    assert "Medians over slice" in captions(files["index.html"])
    assert ">32</text>" in files["index.html"]


def test_an_unreadable_report_of_an_earlier_run_is_left_out() -> None:
    store, matrices = stored("A", "B")
    store.put(layout.report("sim", matrices[0].run, "summary.json"), b"{", generation=0)
    text = report_files(store, read_run(store, "sim", matrices[1].run))["index.html"].decode()
    assert "The last" not in text


@pytest.mark.parametrize("value", [5e-324, 1e308])
def test_a_forged_report_of_an_earlier_run_is_left_out(value: float) -> None:
    store, matrices = stored("A", "B")
    write_report(store, "sim", matrices[0].run)
    key = layout.report("sim", matrices[0].run, "summary.json")
    data = re.sub(rb'"median":[0-9.]+', f'"median":{value}'.encode(), store.get(key).data)
    store.put(key, data, generation=store.get(key).meta.generation)
    text = report_files(store, read_run(store, "sim", matrices[1].run))["index.html"].decode()
    assert "The last" not in text


def test_long_names_of_cells_are_whole_in_the_pictures() -> None:
    store, matrices = MemoryStore(), [sized()]
    variables = {"program": "allreduce_over_all_devices", "framework": "tensorflow_with_xla", "slice": "tpu-v4-16-end"}
    for cell in matrices[0].cells:
        cell.variables.update(variables)  # type: ignore[attr-defined]
    store_run(store, matrices[0], documents(random.Random(1), matrices[0], luck(random.Random(1), 1)))
    drawn = "".join(re.findall(r"<svg.*?</svg>", files_of_store(store, matrices[0])["index.html"], flags=re.DOTALL))
    words = "".join(re.findall(r">([^<]*)</t", drawn))
    assert "program=allreduce_over_all_devices" in words and "slice=tpu-v4-16-end" in words
    assert "…" not in words


def test_many_cells_make_several_pictures() -> None:
    cells = [f"c{number}" for number in range(pictures.ROWS_MAX + 1)]
    results = [result_of(cell, 1, 1.0 + number / 100) for number, cell in enumerate(cells)]
    files = files_of(matrix_of(cells, 1), *results)
    assert captions(files["index.html"]).count("All jobs, with medians and intervals") == 2


def test_without_matplotlib_the_report_has_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    files = files_of(matrix_of(["a"], 1), result_of("a", 1, 1.0))
    assert "No pictures: matplotlib is not installed" in files["index.html"]
    assert "<svg" not in files["index.html"]


def test_the_summary_has_medians_and_intervals() -> None:
    files = files_of(matrix_of(["a"], 3), *(result_of("a", number + 1, number + 1.0) for number in range(3)))
    summary = layout.read(Summary, files["summary.json"].encode(), "summary.json")
    found = summary.cells[0].metrics[METRIC]
    assert (found.median, found.low, found.high, found.jobs) == (2.0, 1.0, 3.0, 3)
    assert "1 to 3 (75%)" in files["index.html"]
