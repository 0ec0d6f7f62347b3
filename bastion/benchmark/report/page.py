"""The report as one HTML file: no script, nothing from another place, readable in light and dark.

Texts from the bucket are hostile: each passes `_text`, and each link is a path within the bucket.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from bastion.benchmark.layout import CellSummary
from bastion.benchmark.report import pictures
from bastion.benchmark.report.contents import Contents, facts, histories, label, problems, rows, scalings
from bastion.benchmark.report.numbers import interval_text, noise_text, number
from bastion.core.plain_text import plain_line
from bastion.core.plurals import count

# From benchmarks/<name>/<run>/report/ to the bastion's root.
_ROOT = "../../../../"
_OF_A_JOB = re.compile(r"(?:logs|outputs)/(?:[A-Za-z0-9_.:,+=@~-]+/?)+")

_STYLE = """
:root { color-scheme: light dark; --paper: #fdfdfb; --ink: #23272b; --faint: #d9dcdf; --mark: #9a2617;
  --s0: #2563a8; --s1: #b3541e; --s2: #2c7a4b; --s3: #8a3d8f; --s4: #7a6a12; --s5: #b02a4c; --s6: #1d7a86;
  --s7: #5b5f97 }
@media (prefers-color-scheme: dark) { :root { --paper: #16191c; --ink: #dde1e4; --faint: #3a4046; --mark: #ff9d8a;
  --s0: #79b4f2; --s1: #f0a36b; --s2: #7fd39d; --s3: #d79bdc; --s4: #d9c65a; --s5: #f58aa5; --s6: #6fd0dc;
  --s7: #aab0ee } }
body { background: var(--paper); color: var(--ink); font: 15px/1.45 system-ui, sans-serif; max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2.5rem } h3 { font-size: 1rem }
a { color: inherit }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--faint); vertical-align: top }
td.n, th.n { text-align: right }
.bad { color: var(--mark) }
figure { margin: 1.2rem 0 } figcaption { font-size: .9rem }
svg { max-width: 100%; height: auto } svg * { stroke-linejoin: round; stroke-linecap: butt }
"""


def page(of: Contents) -> str:
    """Return the whole file; the same contents give the same bytes."""
    matrix = of.run.matrix
    jobs = sum(len(cell.jobs) for cell in of.run.cells)
    body = [
        f"<h1>{_text(matrix.name)}</h1>",
        f"<p>Run {_text(matrix.run)}, {count(len(of.run.cells), 'cell')}, {count(jobs, 'job')}, by "
        f"{_text(matrix.user)} in project {_text(matrix.project)}, submitted {_text(matrix.created_at)}.</p>",
        *_problems(of),
    ]
    for metric in matrix.metrics:
        body += _metric(of, metric)
    body += ["<h2>Environment</h2>", *_table(("fact", "value"), facts(of.run))]
    body += ["<h2>How to read this</h2>", f"<p>{_HOW}</p>"]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{_text(of.run.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


_HOW = (
    "Each job is one number: the median of its values after the warmup. A cell's number is the median over its jobs; "
    "its interval is a 95 % bootstrap interval over jobs. With fewer than six jobs it is the range of their values, "
    "and holds the median less often, as shown. Noise is the standard deviation between jobs in one place. A gate is "
    "held if two runs of the same code would be told to be the same in 90 % of cases, with the noise that all cells "
    "have in common, or a cell's own if it is clearly larger."
)


def _problems(of: Contents) -> list[str]:
    found = problems(of.run)
    jobs = sum(len(cell.jobs) for cell in of.run.cells)
    if not found:
        return [f"<p>All {count(jobs, 'job')} measured everything.</p>"]
    body = [f'<h2 class="bad">{len(found)} of {count(jobs, "job")} did not measure everything</h2>']
    table = [
        (
            _text(each.cell),
            str(each.repeat),
            _text(each.job),
            _text(each.outcome),
            _text(each.reason),
            " ".join(
                link for text, key in (("logs", each.logs), ("outputs", each.outputs)) if (link := _link(text, key))
            ),
        )
        for each in found
    ]
    return body + list(_raw_table(("cell", "repeat", "job", "outcome", "reason", ""), table))


def _metric(of: Contents, metric: str) -> list[str]:
    terms = of.run.matrix.metrics[metric]
    axis = f"{metric} ({terms.unit})"
    body = [
        f"<h2>{_text(metric)}</h2>",
        f"<p>In {_text(terms.unit)}; {_text(terms.better.value)} is better; gate {terms.gate * 100:g} %.</p>",
        *_table(
            ("cell", "jobs", "median", "interval", "noise"),
            [_row(of, cell, metric) for cell in of.summary.cells],
            numbers=(1, 2),
        ),
    ]
    if not pictures.available():
        return [*body, "<p>No pictures: matplotlib is not installed where this report was made (extra: plot).</p>"]
    drawn_rows = (pictures.values(picture, axis=of_rows) for of_rows, picture in rows(of, metric))
    body += [_figure(drawn, "All jobs, with medians and intervals") for drawn in drawn_rows]
    for scaling in scalings(of, metric):
        drawn = pictures.lines(scaling.lines, x=scaling.variable, y=axis)
        body.append(_figure(drawn, f"Medians over {scaling.variable}"))
    for dates, lines in histories(of, metric):
        drawn = pictures.lines(lines, x="run", y=f"{metric}, of the first run", ticks=dates)
        body.append(_figure(drawn, f"The last {count(len(dates), 'run')} of {of.run.matrix.name}"))
    return body


def _row(of: Contents, cell: CellSummary, metric: str) -> list[str]:
    found = cell.metrics.get(metric)
    if found is None:
        return [label(cell), f"0 of {cell.jobs}", "", "missing", ""]
    return [
        label(cell),
        str(found.jobs) if found.jobs == cell.jobs else f"{found.jobs} of {cell.jobs}",
        number(found.median),
        interval_text(found),
        noise_text(of.noise[cell.cell, metric]),
    ]


def _figure(svg: str, caption: str) -> str:
    named = svg.replace("<svg ", f'<svg role="img" aria-label="{_text(caption)}" ', 1)
    return f"<figure>{named}<figcaption>{_text(caption)}</figcaption></figure>"


def _table(header: Iterable[str], table: Iterable[Iterable[str]], numbers: Iterable[int] = ()) -> Iterator[str]:
    return _raw_table(header, ([_text(cell) for cell in row] for row in table), numbers)


def _raw_table(header: Iterable[str], table: Iterable[Iterable[str]], numbers: Iterable[int] = ()) -> Iterator[str]:
    """Yield the lines of a table whose cells are HTML."""
    right = set(numbers)

    def cells(tag: str, texts: Iterable[str]) -> str:
        return "".join(
            f'<{tag} class="n">{text}</{tag}>' if at in right else f"<{tag}>{text}</{tag}>"
            for at, text in enumerate(texts)
        )

    yield f"<table>\n<thead><tr>{cells('th', header)}</tr></thead>\n<tbody>"
    for row in table:
        yield f"<tr>{cells('td', row)}</tr>"
    yield "</tbody>\n</table>"


def _text(text: object) -> str:
    return html.escape(plain_line(text), quote=True)


def _link(text: str, key: str) -> str:
    """Return a link to an object of the bucket; empty if the key is not that of a job's logs or outputs."""
    if not _OF_A_JOB.fullmatch(key) or ".." in key:
        return ""
    return f'<a href="{_text(_ROOT + quote(key))}">{_text(text)}</a>'
