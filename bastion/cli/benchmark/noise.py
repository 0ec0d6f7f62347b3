"""`bastion benchmark noise RUN`: what gate a benchmark can hold."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.benchmark import gate, runs
from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client
from bastion.cli.output import emit_json, say, table
from bastion.cli.phrases import count
from bastion.core.errors import Refused

if TYPE_CHECKING:
    from bastion.benchmark.noise import Noise


def _define(values: flags.FlagValues) -> None:
    gate.define(values, "Refuse if a cell cannot hold this gate. Default: show what each metric's own gate takes.")


def _run(call: Invocation) -> int:
    from bastion.benchmark.measurements import read_run
    from bastion.benchmark.noise import noise

    wanted = gate.read(call.flags)
    client, _ = open_client(call)
    found = noise(read_run(client.store, *runs.find(client, call.operands[0])), wanted)
    if call.json:
        emit_json([_document(each) for each in found])
    else:
        _show(found)
    if wanted is not None:
        _refuse_finer(found, wanted)
    return 0


def _show(found: list[Noise]) -> None:
    from bastion.benchmark.report.numbers import percent

    rows = [
        (
            each.cell,
            each.metric,
            str(each.jobs),
            "-" if each.deviation is None else percent(each.deviation),
            "-" if each.assumed is None else percent(each.assumed),
            "-" if each.holds is None else percent(each.holds),
            percent(each.gate),
            "-" if each.repeats_for_gate is None else str(each.repeats_for_gate),
        )
        for each in found
    ]
    print(table(("CELL", "METRIC", "JOBS", "NOISE", "ASSUMED", "HOLDS", "GATE", "REPEATS FOR GATE"), rows), end="")
    for each in found:
        if each.why_unknown:
            say(f"bastion: {each.cell}, {each.metric}: the noise is unknown: {each.why_unknown}")


def _refuse_finer(found: list[Noise], wanted: float) -> None:
    """Raise Refused, with the repeats that the gate takes, if a cell cannot hold it."""
    from bastion.benchmark.report.numbers import percent

    noisy = [each for each in found if each.assumed is not None and (each.holds is None or each.holds > wanted)]
    if noisy:
        worst = max(noisy, key=lambda each: each.holds or math.inf)
        repeats = [each.repeats_for_gate for each in noisy]
        held = f"hold {percent(worst.holds)}" if worst.holds is not None else "hold no gate"
        most = 0 if None in repeats else max(each for each in repeats if each is not None)
        advice = f"use repeats = {most}, or a gate that they hold" if most else "make the jobs less noisy"
        raise Refused(
            f"the gate of {percent(wanted)} is too fine: {count(worst.jobs, 'repeat')} of {worst.cell} {held} for "
            f"{worst.metric}; {advice}"
        )
    unknown = next((each for each in found if each.assumed is None), None)
    if unknown is not None:
        raise Refused(
            f"the noise of {unknown.metric} in {unknown.cell} is unknown ({unknown.why_unknown}), so it may not hold a "
            f"gate of {percent(wanted)}; run it again, with more repeats"
        )


def _document(each: Noise) -> dict[str, object]:
    return {
        "cell": each.cell,
        "metric": each.metric,
        "jobs": each.jobs,
        "places": each.places,
        "noise": each.deviation,
        "assumed": each.assumed,
        "holds": each.holds,
        "gate": each.gate,
        "repeats_for_gate": each.repeats_for_gate,
        "why_unknown": each.why_unknown,
    }


NOISE = Command(
    summary="Shows what gate a benchmark can hold, by the noise of one run and its number of repeats.",
    usage="NAME[/RUN] [--gate=5%] [--output=json]",
    details="""NOISE is the standard deviation between jobs in one place. ASSUMED is that of all cells together, or a
        cell's own if it is clearly larger, because few jobs know their noise only roughly. A gate is held if two runs
        of the same code are told to be the same in 90 % of cases; then a change of twice the gate is told in 95 %.
        REPEATS FOR GATE is the number of repeats that holds GATE, which is --gate or the metric's own.

        With --gate, exits with 64 if a cell cannot hold it.""",
    examples=("bastion benchmark noise matmul", "bastion benchmark noise matmul --gate=2%"),
    operands=(1, 1),
    define=_define,
    takes_output=True,
    run=_run,
)
