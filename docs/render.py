"""Renders the pages that follow from the code: `python docs/render.py` writes them, `--check` fails if one is stale."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from bastion.adapters.kubernetes import failures, state
from bastion.cli import reference
from bastion.core import limits
from bastion.core.model.job_record import Cause
from bastion.core.model.lifecycle import TRANSITIONS
from bastion.core.reconcile import gang_table

DOCS = Path(__file__).resolve().parent
LIMITS = Path(limits.__file__)


def limits_page() -> str:
    """Every constant of `bastion/core/limits.py` with its value and the comment above it."""
    lines = [
        "# Limits",
        "",
        "Generated from `bastion/core/limits.py`. A limit exists because something breaks, costs money or harms others",
        "beyond it.",
        "",
        "| limit | value | why |",
        "|---|---|---|",
    ]
    why: list[str] = []
    for line in LIMITS.read_text("utf-8").splitlines():
        constant = re.fullmatch(r"([A-Z][A-Z_0-9]*) = .+", line)
        if constant:
            value = getattr(limits, constant[1])
            lines.append(f"| `{constant[1]}` | {value:,} | {' '.join(why)} |")
            why = []
        elif line.startswith("# "):
            why.append(line[2:])
        else:
            why = []
    return "\n".join(lines) + "\n"


def transitions_table() -> str:
    rows = [f"| {before.value} | {after.value} | {when} |" for (before, after), when in TRANSITIONS.items()]
    return "\n".join(["| from | to | when |", "|---|---|---|", *rows]) + "\n"


def slice_states_page() -> str:
    """The table of what is done about a slice, with a legend of its phases and actions."""
    lines = [
        "# What the daemon does about a slice in each state",
        "",
        "Generated from `bastion/core/reconcile/gang_table.py`; each cell is a test. Rows are states in the Cloud TPU",
        "API (v2), columns are phases of the job's attempt. A gang is all slices of an attempt. Until its queued",
        "resource, if it has one, is ACTIVE, the state of that resource counts. Then the worst state of its nodes",
        "counts: a gang that lost a node is lost. An unknown state counts as CREATING, which stops no running job.",
        "",
        "| phase | what it means |",
        "|---|---|",
        *(f"| {phase.value} | {meaning} |" for phase, meaning in gang_table.PHASES.items()),
        "",
        "| what exists | " + " | ".join(phase.value for phase in gang_table.Phase) + " |",
        "|---|" + "---|" * len(gang_table.Phase),
    ]
    for name, seen in gang_table.rows():
        cells = gang_table.TABLE[seen]
        lines.append(f"| {name} | " + " | ".join(cells[phase].value for phase in gang_table.Phase) + " |")
    lines += ["", "| in the table | what is done |", "|---|---|"]
    lines += [f"| {action.value} | {meaning} |" for action, meaning in gang_table.ACTIONS.items()]
    return "\n".join(lines) + "\n"


# What becomes of a job, by the cause of its gang's failure; see `bastion.core.reconcile.retry_policy`.
_CAUSES = {
    Cause.FAILED: "another attempt if `--max_tries` allows another try, else the job fails with that exit code",
    Cause.REFUSED: "the job is refused at once, exit code 64",
    Cause.INFRASTRUCTURE: "another attempt after a pause, up to `infrastructure_attempts` in a row",
    Cause.CAPACITY: "the next place at once, then a pause, until `--max_wait`",
}


def kubernetes_states_page() -> str:
    """The states of a gang on Kubernetes, the classes of its failures, and what follows."""
    lines = [
        "# Gangs on Kubernetes: states and failures",
        "",
        "Generated from `bastion/adapters/kubernetes/state.py` and `failures.py`. A gang is a JobSet with its Jobs and",
        "pods. What the daemon does in each state is in [Slice states](slice-states.md), as for Cloud TPU.",
        "",
        "## States",
        "",
        "The first row that matches decides.",
        "",
        "| what exists | state |",
        "|---|---|",
        *(f"| {rule.seen} | {rule.state} |" for rule in state.RULES),
        "",
        "A gang of which some pods have machines and others have none is half placed. It gives its machines back",
        "after `zone_wait_seconds`, even if there is only one place. A gang that waits beyond `--max_wait` is FAILED",
        "for want of capacity.",
        "",
        "## Failures",
        "",
        "| sign | cause | meaning |",
        "|---|---|---|",
        *(f"| {each.sign} | `{each.cause}` | {each.words} |" for each in failures.CLASSES),
        "",
        "A node that is only NotReady is no sign: the hosts' heartbeats judge. When a pod was disrupted, its exit code",
        f"counts for nothing, unless its container ran out of memory (exit code {failures.OUT_OF_MEMORY_EXIT}).",
        "",
        "## What follows",
        "",
        "| cause | what becomes of the job |",
        "|---|---|",
        *(f"| `{cause.value}` | {meaning} |" for cause, meaning in _CAUSES.items()),
        "",
        "Reports in the bucket win over what the pods say: a command that ended, and was reported, has ended.",
    ]
    return "\n".join(lines) + "\n"


def between(page: str, name: str, content: str) -> str:
    """The page with what lies between its `name:begin` and `name:end` marks replaced."""
    pattern = re.compile(rf"(<!-- {name}:begin[^\n]*-->\n).*?(<!-- {name}:end -->)", re.DOTALL)
    return pattern.sub(lambda match: match[1] + content + match[2], page)


def pages() -> dict[Path, str]:
    """Every generated page with the text it should have."""
    jobs = DOCS / "explanation" / "jobs.md"
    return {
        DOCS / "reference" / "limits.md": limits_page(),
        DOCS / "reference" / "slice-states.md": slice_states_page(),
        DOCS / "reference" / "kubernetes-states.md": kubernetes_states_page(),
        DOCS / "reference" / "cli.md": reference.render(),
        jobs: between(jobs.read_text("utf-8"), "transitions", transitions_table()),
    }


def main(argv: list[str]) -> int:
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in argv:
        for path in stale:
            sys.stderr.write(f"{path} is stale; run `make docs`\n")
        return bool(stale)
    for path in stale:
        path.write_text(pages()[path], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
