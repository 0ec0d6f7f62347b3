"""`bastion benchmark status RUN`: how far a run is, by cell."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from bastion.cli.benchmark import runs
from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client, warn_if_no_daemon
from bastion.cli.output import emit_json, plain, say, table

if TYPE_CHECKING:
    from bastion.benchmark.layout import Matrix
    from bastion.client import Client, JobInfo

_HEADER = ("CELL", "REPEATS", "WAITING", "RUNNING", "ENDED", "COMPLETE")


def _run(call: Invocation) -> int:
    from bastion.benchmark import documents

    client, target = open_client(call)
    name, run = runs.find(client, call.operands[0])
    matrix = documents.read_matrix(client.store, name, run)
    submitted = documents.read_submitted(client.store, name, run)
    info = client.look(matrix.finisher)
    ended = info is not None and info.result is not None
    stage = _stage(info, matrix)
    rows = _rows(client, matrix, submitted is not None or ended)
    if call.json:
        names = [each.lower() for each in _HEADER]
        cells = [dict(zip(names, row, strict=True)) for row in rows]
        emit_json({"run": f"{name}/{run}", "stage": stage, "deadline": matrix.deadline_at, "cells": cells})
        return 0
    print(f"run       {plain(name)}/{plain(run)}")
    print(f"stage     {plain(stage)}")
    print(f"deadline  {plain(matrix.deadline_at or 'none')}")
    print(table(_HEADER, [[str(each) for each in row] for row in rows]), end="")
    if submitted is None and not ended:
        say("bastion: not all jobs are submitted; run the file again to go on (bastion benchmark run FILE)")
    warn_if_no_daemon(client, target)
    return 0


def _stage(info: JobInfo | None, matrix: Matrix) -> str:
    if info is None:
        return "not submitted, or its result is deleted"
    if info.result is not None:
        ended = f"ended ({info.result.outcome})"
        if info.result.cleanup.outcome == "failed":
            ended += (
                f"; its tear-down failed: bastion logs --attempt=0 {matrix.finisher}, then bastion benchmark finish "
                f"{matrix.name}/{matrix.run}"
            )
        return ended
    if info.problem:
        return f"refused: {info.problem}"
    return {"CLEANING": "running, or being torn down", "PENDING": "waiting for the bastion"}.get(
        info.status.value if info.status else "PENDING", "starting: up, and the submission of all jobs"
    )


def _rows(client: Client, matrix: Matrix, submitted: bool) -> list[tuple[str | int, ...]]:
    from bastion.benchmark.finish import live_jobs
    from bastion.benchmark.measurements import read_run

    live = live_jobs(client, matrix)
    entries = client.entries()
    found = read_run(client.store, matrix.name, matrix.run)
    whole = Counter(cell.cell for cell in found.cells for job in cell.jobs if found.is_whole(job))
    rows: list[tuple[str | int, ...]] = []
    for cell in matrix.cells:
        jobs = [each.job for each in cell.repeats]
        alive = [job for job in jobs if job in live]
        running = sum(1 for job in alive if job in entries and entries[job].status != "PENDING")
        ended = len(jobs) - len(alive) if submitted else 0
        rows.append((cell.cell, len(jobs), len(alive) - running, running, ended, whole[cell.cell]))
    return rows


STATUS = Command(
    summary="Shows how far a run is, by cell.",
    usage="RUN",
    details="""RUN is NAME/RUN as bastion benchmark run printed it, or NAME for the newest run. COMPLETE counts the jobs
        whose results were collected with all metrics; that is done after the last job. For single jobs use
        bastion list --group and bastion why.""",
    examples=("bastion benchmark status matmul",),
    operands=(1, 1),
    takes_output=True,
    run=_run,
)
