"""Judge the settings of a bucket of Cloud Storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bastion.cli.doctor.finding import Finding, Severity
from bastion.core.bucket import keys
from bastion.core.instants import duration
from bastion.core.model.bucket_settings import BucketSettings

# Objects that their owners delete: without them, a job is forgotten or runs again.
_LIVE = (
    keys.JOBS_ACTIVE,
    keys.JOBS_USER_STATES,
    keys.JOBS_STATES,
    keys.JOBS_CLAIMS,
    keys.JOBS_INVALID,
    keys.INBOX,
    keys.RUNS,
    keys.BEATS,
    keys.LEASE,
    keys.STATUS,
    "config/",
    keys.RUNTIME_OPTIONS,
    "project-quotas/",
)
_KEPT = "a secret that was in a spec by mistake stays after it is deleted, and each overwritten object is billed"
# Conditions of versions that are no longer live.
_OF_OLD_VERSIONS = ("daysSinceNoncurrentTime", "noncurrentTimeBefore", "numNewerVersions")


def of_bastion(url: str, root: str, found: BucketSettings) -> Iterator[Finding]:
    """The bucket of a ROOT; `root` is its folder there, without "/" at its end."""
    yield from of_any(url, found)
    if found.versioned:
        yield Finding(
            severity=Severity.WARNING,
            what=f"{url} keeps versions",
            why=_KEPT,
            remedy=f"gcloud storage buckets update {url} --no-versioning, and delete the noncurrent versions",
        )
    elif found.soft_delete_seconds:
        yield Finding(
            severity=Severity.WARNING,
            what=f"{url} keeps deleted objects for {duration(found.soft_delete_seconds)} (soft delete)",
            why=_KEPT,
            remedy=f"gcloud storage buckets update {url} --clear-soft-delete",
        )
    for rule in found.lifecycle:
        hit = sorted(_hit(rule, root))
        if hit:
            yield Finding(
                severity=Severity.ERROR,
                what=f"a lifecycle rule of {url} deletes objects of {', '.join(f'{root}/{name}' for name in hit[:3])}"
                + (f" and {len(hit) - 3} more" if len(hit) > 3 else ""),
                why="their owners delete them; a job whose state disappears runs again",
                remedy="give the rule prefixes such as those of deploy/lifecycle.json, and set it with "
                f"`gcloud storage buckets update {url} --lifecycle-file=FILE`",
            )


def of_any(url: str, found: BucketSettings) -> Iterator[Finding]:
    """Any bucket of a bastion: its own, or that of its quota file."""
    if not found.uniform_access:
        yield Finding(
            severity=Severity.ERROR,
            what=f"uniform bucket-level access of {url} is off",
            why="access lists of objects grant rights beside IAM, and managed folders do not work",
            remedy=f"gcloud storage buckets update {url} --uniform-bucket-level-access",
        )
    if not found.public_access_prevented:
        yield Finding(
            severity=Severity.WARNING,
            what=f"public access prevention of {url} is not enforced",
            why="one binding of allUsers would show specs and logs to everybody",
            remedy=f"gcloud storage buckets update {url} --public-access-prevention",
        )
    if found.retention_seconds or found.held_by_default:
        kind = f"a retention policy of {duration(found.retention_seconds)}" if found.retention_seconds else "holds"
        yield Finding(
            severity=Severity.ERROR,
            what=f"{url} has {kind}",
            why="nobody can overwrite or delete an object that is retained, so jobs can neither go on nor end",
            remedy=f"gcloud storage buckets update {url} "
            + ("--clear-retention-period" if found.retention_seconds else "--no-default-event-based-hold"),
        )


def _hit(rule: Mapping[str, Any], root: str) -> set[str]:
    """Which live folders a rule deletes from."""
    condition = rule.get("condition", {})
    if rule.get("action", {}).get("type") != "Delete" or condition.get("isLive") is False:
        return set()
    if any(name in condition for name in _OF_OLD_VERSIONS):
        return set()
    prefixes = condition.get("matchesPrefix") or [""]
    live = {name: f"{root}/{name}" for name in _LIVE}
    return {name for name, key in live.items() for one in prefixes if key.startswith(one) or one.startswith(key)}
