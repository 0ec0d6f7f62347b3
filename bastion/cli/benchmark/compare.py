"""`bastion benchmark compare A B`: faster, slower, the same, or cannot tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags

from bastion.cli.benchmark import gate, runs
from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.output import emit_json, say, table
from bastion.core import plurals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bastion.benchmark.comparison import CellComparison, Comparison
    from bastion.benchmark.environment_facts import EnvironmentDifference


_DIFFERENCES_SHOWN = 40


def _define(values: flags.FlagValues) -> None:
    gate.define(values, "Changes up to this are the same, like 5%. Default: the gate of each metric in B's file.")
    flags.DEFINE_multi_string(
        "allow",
        [],
        "Compare although this fact of the environments differs: commit, libraries.jax, place ... (repeatable).",
        flag_values=values,
    )


def _run(call: Invocation) -> int:
    from bastion.benchmark.comparison import DifferentEnvironments, compare
    from bastion.benchmark.environment_facts import check_keys
    from bastion.benchmark.measurements import read_run
    from bastion.core.errors import Refused

    wanted = gate.read(call.flags)
    check_keys(call.flags.allow)
    client, _ = open_client(call)
    names = [runs.find(client, each) for each in call.operands]
    if names[0] == names[1]:
        raise Refused(f"both sides are {'/'.join(names[0])}; name two runs: NAME/RUN NAME/RUN")
    baseline, candidate = (read_run(client.store, name, run) for name, run in names)
    try:
        found = compare(baseline, candidate, gate=wanted, allowed=call.flags.allow)
    except DifferentEnvironments as error:
        _tell_differences(error.differences)
        raise
    if call.json:
        emit_json(_document(found))
    else:
        _show(found)
    return found.exit_code


def _tell_differences(found: Sequence[EnvironmentDifference]) -> None:
    rows = [(each.key, each.baseline, each.candidate, each.where) for each in found[:_DIFFERENCES_SHOWN]]
    say(table(("FACT", "BASELINE", "CANDIDATE", "CELLS"), rows).rstrip("\n"))
    more = len(found) - _DIFFERENCES_SHOWN
    if more > 0:
        say(f"bastion: ... and {plurals.count(more, 'more fact')}")


def _show(found: Comparison) -> None:
    from bastion.benchmark.report.numbers import change, number

    def shown(value: float | None) -> str:
        return "-" if value is None else number(value)

    rows = []
    for each in found.cells:
        if each.ratio is None or each.low is None or each.high is None:
            ratio = interval = "-"
        else:
            ratio, interval = change(each.ratio), f"{change(each.low)} to {change(each.high)}"
        medians = (shown(each.baseline), shown(each.candidate))
        rows.append((each.cell, f"{each.metric} ({each.unit})", *medians, ratio, interval, each.verdict.value))
    print(table(("CELL", "METRIC", "BASELINE", "CANDIDATE", "CHANGE", "INTERVAL", "VERDICT"), rows), end="")
    for each in found.cells:
        if each.why:
            say(f"bastion: {each.cell}, {each.metric}: {each.verdict.value}: {each.why}")
    if found.allowed:
        say("bastion: allowed to differ: " + ", ".join(dict.fromkeys(each.key for each in found.allowed)))
    say(f"bastion: {summary(found)}")


def summary(found: Comparison) -> str:
    """`1 slower, 6 the same, 1 cannot tell`: the verdicts in the order of their weight."""
    from bastion.benchmark.comparison import Verdict

    order = (Verdict.SLOWER, Verdict.MISSING, Verdict.CANNOT_TELL, Verdict.FASTER, Verdict.SAME)
    numbers = {verdict: sum(each.verdict is verdict for each in found.cells) for verdict in order}
    return ", ".join(f"{number} {verdict.value}" for verdict, number in numbers.items() if number)


def _document(found: Comparison) -> dict[str, Any]:
    return {
        "baseline": found.baseline,
        "candidate": found.candidate,
        "exit_code": found.exit_code,
        "allowed": [
            {"key": each.key, "baseline": each.baseline, "candidate": each.candidate, "cells": list(each.cells)}
            for each in found.allowed
        ],
        "cells": [_cell(each) for each in found.cells],
    }


def _cell(each: CellComparison) -> dict[str, Any]:
    return {
        "cell": each.cell,
        "metric": each.metric,
        "unit": each.unit,
        "better": each.better.value,
        "gate": each.gate,
        "verdict": each.verdict.value,
        "why": each.why,
        "baseline": each.baseline,
        "candidate": each.candidate,
        "ratio": each.ratio,
        "low": each.low,
        "high": each.high,
    }


COMPARE = Command(
    summary="Shows for each cell and metric of two runs whether B is faster, slower, the same, or cannot be told.",
    usage="A B [--gate=5%] [--allow=KEY] [--output=json]",
    details="""A is the baseline; both are NAME/RUN, or NAME for its newest run. Jobs are compared within the place
        where they ran. A change is faster or slower if it is beyond the gate, and the same if it is within it, in
        either case with its whole interval. All verdicts of a comparison are true together in 95 % of cases.

        If a fact of the environments differs, such as a library or the commit, the differences are listed and nothing
        is compared; --allow=KEY names one that is meant to differ. Runs in different places, or in another mix of
        places, cannot be told.

        Exit codes: 0 fine, 3 a cell is slower, 4 a cell cannot be told, 5 a cell is missing, 64 not comparable. Of
        several, the order is 3, 5, 4.""",
    examples=(
        "bastion benchmark compare matmul/20260102T030405Z-0123abcd matmul --gate=5% --allow=commit --allow=bundle",
    ),
    operands=(2, 2),
    define=_define,
    takes_output=True,
    run=_run,
)
