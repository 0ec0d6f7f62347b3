"""A report in Debian's Chromium: it draws the pictures, complains about nothing, and runs nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bastion.benchmark.layout import CellResult, Outcome
from bastion.benchmark.measurements import read_run
from bastion.benchmark.report.writing import report_files
from bastion.testing.memory_store import MemoryStore
from tests.support.simulated_benchmarks import matrix_of, result_of, store_run

CHROMIUM = shutil.which("chromium")
HOSTILE = '</td></table><script>document.title = "ran"</script><img src=http://127.0.0.1:9/x onerror=alert(1)>'


def opened(path: Path, tmp_path: Path) -> tuple[str, list[str]]:
    """The page as the browser has it, and what it wrote to its console: violations of the policy among others."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--enable-logging=stderr",
            "--log-level=0",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(CHROMIUM is None, reason="requires Chromium: apt-get install chromium")
def test_a_browser_shows_the_report_and_runs_nothing_of_it(tmp_path: Path) -> None:
    store = MemoryStore()
    matrix = matrix_of(["a", "b", "c"], 2)
    results: list[CellResult | bytes | None] = [
        result_of(cell, repeat, 1.0 + repeat / 100) for cell in "ab" for repeat in (1, 2)
    ]
    results += [result_of("c", repeat, outcome=Outcome.FAILED, reason=HOSTILE) for repeat in (1, 2)]
    name, _, run = store_run(store, matrix, results).partition("/")
    page = report_files(store, read_run(store, name, run))["index.html"]
    good, bad = tmp_path / "index.html", tmp_path / "bad.html"
    good.write_bytes(page)
    shown, console = opened(good, tmp_path)
    assert console == []
    assert f"<title>{name}/{run}</title>" in shown
    assert shown.count("<svg ") == 2
    # The same without its escapes, to see that the browser would have complained.
    bad.write_bytes(page.replace(b"</body>", HOSTILE.encode() + b"</body>"))
    shown, console = opened(bad, tmp_path)
    assert f"<title>{name}/{run}</title>" in shown
    assert any("Executing inline script violates" in line for line in console)
    assert any("Loading the image 'http://127.0.0.1:9/x' violates" in line for line in console)
