"""What a project's rules allow its jobs to ask for."""

from __future__ import annotations

from dataclasses import dataclass

from quota.rules import ProjectRules

_TYPES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a job asks for.

    Attributes:
        instance_type: Empty: a job on the bastion's own host.
        priority: 1 is the highest, 5 the lowest.
        root: Its command runs as root.
        cleanup: It has a cleanup command, which runs on the bastion's own host.
    """

    instance_type: str = ""
    priority: int = 5
    root: bool = False
    cleanup: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """What is not allowed.

    Attributes:
        problem: What the job asks for, and what its project may have.
        change: The change of the quota file that would allow it.
        instead: What the job could ask for.
    """

    problem: str
    change: str
    instead: str


def restricts(rules: ProjectRules) -> bool:
    """Whether a job without root may be denied anything."""
    return rules.highest_priority > 1 or rules.instance_types is not None or not rules.allow_bastion_jobs


def allows_type(rules: ProjectRules, instance_type: str) -> bool:
    if rules.instance_types is None:
        return True
    return any(
        instance_type.startswith(each[:-1]) if each.endswith("*") else instance_type == each
        for each in rules.instance_types
    )


def denial(project: str, rules: ProjectRules, asked: Asked) -> Denial | None:
    """Return the first thing that the project's rules do not allow; None if all is allowed."""
    if asked.root and not rules.allow_root:
        return Denial(
            problem=f"project {project} may not run jobs as root (allow_root = false)",
            change="sets allow_root = true",
            instead="without root",
        )
    if not asked.instance_type and not rules.allow_bastion_jobs:
        return Denial(
            problem=f"project {project} may not run jobs on the bastion's own host (allow_bastion_jobs = false)",
            change="sets allow_bastion_jobs = true",
            instead="with an instance type",
        )
    if asked.cleanup and not rules.allow_bastion_jobs:
        return Denial(
            problem=f"project {project} may not run cleanup commands, because they run on the bastion's own host "
            "(allow_bastion_jobs = false)",
            change="sets allow_bastion_jobs = true",
            instead="without a cleanup command",
        )
    if asked.instance_type and not allows_type(rules, asked.instance_type):
        types = rules.instance_types or ()
        shown = ", ".join(types[:_TYPES_SHOWN]) + (", ..." if len(types) > _TYPES_SHOWN else "")
        return Denial(
            problem=f"project {project} may use the instance types {shown or '(none)'}, not {asked.instance_type}",
            change=f"adds {asked.instance_type} to instance_types",
            instead="with one of these types",
        )
    if asked.priority < rules.highest_priority:
        return Denial(
            problem=f"jobs of project {project} may have priority {rules.highest_priority} at most, not "
            f"{asked.priority} (1 is the highest)",
            change=f"sets highest_priority = {asked.priority}",
            instead=f"with priority {rules.highest_priority}",
        )
    return None
