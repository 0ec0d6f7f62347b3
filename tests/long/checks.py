"""What must hold after the long run: read from the bucket, the emulator's event log and the commands' notes."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bastion.core.bucket import keys, segment_proofs
from bastion.core.errors import NotFound
from bastion.core.model.gangs import GangRef
from bastion.emulators.tpu.fault_plan import FaultPlan
from bastion.ports import ObjectStore
from tests.long.workload import LongJob

_LINE = re.compile(r"\S+ (?P<stream>stdout|stderr|gap) (?P<kind>[FP]) (?P<text>.*)")
_PRINTED = re.compile(r"try (\d+) line (\d+)")
# What ends a host without a word; the others give notice.
HARD = ("crash", "silent-crash")


def result(store: ObjectStore, name: str) -> dict[str, Any] | None:
    """The job's result once it is over and its state is gone."""
    try:
        document = json.loads(store.get(keys.complete(name)).data)
    except NotFound:
        return None
    found: dict[str, Any] = document["result"]
    return found if store.head(keys.state(name)) is None else None


def read_events(folder: Path) -> list[dict[str, Any]]:
    """The events so far; a last line that is being written just now is none yet."""
    files = [folder / "events.jsonl.1", folder / "events.jsonl"]
    texts = [file.read_text().rpartition("\n")[0] for file in files if file.exists()]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def outcomes(jobs: Iterable[LongJob], results: Mapping[str, dict[str, Any]]) -> list[str]:
    """Every job ended as its command says, or was cancelled by whoever wanted that; nothing else counts."""
    problems = []
    for job in jobs:
        found = results[job.name]
        cancelled = job.cancelled_after is not None and found["outcome"] == "cancelled"
        expected = ("failed" if job.exit_code else "succeeded", job.exit_code)
        if not cancelled and (found["outcome"], found["exit_code"]) != expected:
            problems.append(f"{job.name} should be {expected}: {found}")
    return problems


def overcommitted(events: Iterable[Mapping[str, Any]], pool: int) -> tuple[int, list[str]]:
    """The most units that were held at once, and when that was more than the pool has."""
    held: dict[str, int] = {}
    most, problems = 0, []
    for event in events:
        if event["event"] == "started":
            held.clear()
        elif event["units"]:
            held[event["name"]] = event["units"]
        else:
            held.pop(event["name"], None)
        total = sum(held.values())
        if total > pool and total > most:
            problems.append(f"{total} of {pool} units at {event['at']}: {sorted(held)}")
        most = max(most, total)
    return most, problems


def leaked(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names that came and never went."""
    there: set[str] = set()
    for event in events:
        if event["event"] == "gone":
            there.discard(event["name"])
        elif event["name"]:
            there.add(event["name"])
    return sorted(there)


def histories(store: ObjectStore, jobs: Iterable[LongJob]) -> list[str]:
    problems = []
    for job in jobs:
        history = store.get(keys.job_history(job.name)).data.decode().splitlines()
        numbers = [int(line.split()[1].partition("#")[2]) for line in history]
        if numbers != list(range(1, len(numbers) + 1)):
            problems.append(f"the history of {job.name} is not whole: {numbers}")
    return problems


def incarnations(witness: Path) -> list[str]:
    """No host of a run began a try twice, and no two attempts of a host lived at the same time."""
    begun = Counter((witness / "begun").read_text().split())
    twice = (witness / "twice").read_text().split() if (witness / "twice").exists() else []
    return [f"{name} began {n} times" for name, n in begun.items() if n > 1] + [
        f"{name} began while an earlier attempt lived" for name in twice
    ]


def logs(
    store: ObjectStore,
    jobs: Iterable[LongJob],
    results: Mapping[str, dict[str, Any]],
    witness: Path,
    killed_hard: Callable[[str, LongJob], bool],
) -> tuple[Counter[str], list[str]]:
    """Every host's log has its lines from the first one on without a hole, and all of them but where it was killed.

    `killed_hard`: whether chance took a host of the run of a job without notice.
    """
    seen: Counter[str] = Counter()
    problems = []
    for job in jobs:
        stored = _stored(store, job.name)
        printed = _printed(witness, results[job.name]["uid"])
        for key in sorted({*stored, *printed}):
            run, number, host = key
            lines, gaps = stored.get(key, ([], []))
            hard = killed_hard(run, job)
            seen["logs"] += 1
            seen["lines"] += len(lines)
            seen["of hosts that were killed"] += hard
            seen["with a gap line"] += bool(gaps)
            what = f"{job.name}: {run} try {number} host {host}"
            if lines != list(range(1, len(lines) + 1)) and not (hard and gaps):
                problems.append(f"{what} has a hole: {lines}")
            if gaps and not hard:
                problems.append(f"{what} has gaps though nobody killed it: {gaps}")
            if len(lines) < printed.get(key, 0) and not hard:
                problems.append(f"{what} printed {printed[key]} lines, {len(lines)} are stored")
        if results[job.name]["outcome"] == "succeeded":
            last = max((int(run.partition("-")[2]), number) for run, number, _ in stored)
            whole = {
                host: len(lines)
                for (run, number, host), (lines, _) in stored.items()
                if (int(run.partition("-")[2]), number) == last
            }
            if whole != dict.fromkeys(range(job.hosts), job.lines):
                problems.append(f"{job.name} succeeded with {whole} of {job.lines} lines")
    return seen, problems


def _stored(store: ObjectStore, job: str) -> dict[tuple[str, int, int], tuple[list[int], list[str]]]:
    """Numbers of the lines, and the gap lines, by run, try and host."""
    found: dict[tuple[str, int, int], tuple[list[int], list[str]]] = defaultdict(lambda: ([], []))
    folder = keys.worker_logs(job)
    for meta in store.list(folder):
        run, worker, _ = meta.key.removeprefix(folder).split("/")
        host = int(worker.removeprefix("worker-"))
        number = max((n for r, n, h in found if (r, h) == (run, host)), default=1)
        for line in segment_proofs.without_proof(store.get(meta.key).data).decode().splitlines():
            match = _LINE.fullmatch(line)
            assert match is not None, f"{meta.key}: {line!r}"
            said = _PRINTED.fullmatch(match["text"])
            if match["stream"] == "gap":
                found[(run, number, host)][1].append(match["text"])
            elif said is not None:
                number = int(said[1])
                found[(run, number, host)][0].append(int(said[2]))
    return dict(found)


def _printed(witness: Path, uid: str) -> dict[tuple[str, int, int], int]:
    """How many lines each host of each try says it printed."""
    found = {}
    for path in witness.glob(f"printed.{uid}-*"):
        _, run, number, host = path.name.split(".")
        found[(run, int(number), int(host))] = int(path.read_text() or "0")
    return found


def node_killed_hard(plan: FaultPlan, run: str, job: LongJob) -> bool:
    """Whether chance took a host of the run's gang without notice, by the names that the emulated Cloud TPU uses."""
    gang = GangRef(name=keys.gang(run), num_slices=job.num_replicas)
    names = [f"{gang.node(index)}#{boot}" for index in range(job.num_replicas) for boot in (1, 2)]
    return any(plan.strikes(fault_type, name) for fault_type in HARD for name in names)


def pod_killed_hard(plan: FaultPlan, run: str, job: LongJob) -> bool:
    """The same, by the names that the emulated cluster uses."""
    return any(pod_struck(plan, kind, run, job) for kind in ("node-lost", "out-of-memory"))


def pod_struck(plan: FaultPlan, fault_type: str, run: str, job: LongJob) -> bool:
    """Whether chance has chosen a pod of the run for a fault."""
    hosts = job.hosts // job.num_replicas
    names = [f"{keys.gang(run)}-slice-{k}-{host}" for k in range(job.num_replicas) for host in range(hosts)]
    return any(plan.strikes(fault_type, name) for name in names)
