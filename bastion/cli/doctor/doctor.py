"""`bastion doctor`: look at a bastion's rights, settings and documents, and say what is wrong."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import asdict
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import open_client, start_command
from bastion.cli.doctor.finding import Report
from bastion.cli.output import emit_json, plain, say
from bastion.core.bucket import keys
from bastion.core.encryption import sidecar_contract
from bastion.core.errors import AccessDenied, Refused
from bastion.core.model.mode import Mode
from bastion.core.plurals import count
from bastion.user_config.user import default_user

if TYPE_CHECKING:
    from bastion.cli.doctor.documents import Documents
    from bastion.client import Client
    from bastion.user_config.target import Target
    from bastion.wiring.roots import Root

EXIT_FOUND = 1


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_boolean(
        "write",
        True,
        f"Make and delete one object below {keys.DOCTOR}, where you may write there. It shows whether the store keeps "
        "the conditions of writes, and what time it has.",
        flag_values=values,
    )


def _run(call: Invocation) -> int:
    client, target = open_client(call)
    report = Report()
    _examine(report, client, target, writes=call.flags.write)
    if call.json:
        emit_json(
            {
                "findings": [{**asdict(found), "severity": found.severity.value} for found in report.findings],
                "unchecked": [
                    {"what": what, "why": why} for why, subjects in report.unchecked.items() for what in subjects
                ],
            }
        )
        return EXIT_FOUND if report.findings else 0
    for found in report.findings:
        print(f"{found.severity.value}: {plain(found.what)}")
        print(f"  why: {plain(found.why)}")
        print(f"  do:  {plain(found.remedy)}")
    for why, subjects in report.unchecked.items():
        say(f"cannot be checked: {', '.join(subjects)}: {why}")
    say(f"{count(len(report.findings), 'finding')} at {target.root.url}")
    return EXIT_FOUND if report.findings else 0


def _examine(report: Report, client: Client, target: Target, *, writes: bool) -> None:
    from bastion.cli.doctor import documents

    root = target.root
    with contextlib.suppress(AccessDenied):
        client.store.head(keys.LEASE)  # without a bucket there is nothing to look at
    skew = _probe(report, client, root, writes=writes)
    now = client.clock.now() - (skew or 0.0)
    shared = not root.local
    found = documents.examine(
        report, client, now=now, clock_known=skew is not None, shared=shared, start=start_command(target)
    )
    if root.local:
        from bastion.cli.doctor import folder_bucket

        folder_bucket.examine(report, root, found.mode)
    elif root.scheme == "s3":
        _s3(report, root, found, writes=writes)
    else:
        _cloud_storage(report, root, found)
    if found.mode is Mode.INBOX:
        _inboxes(report, root, found)
    if sidecar_contract.CERT_PATH in os.environ or sidecar_contract.MAPPING in os.environ:
        _proxy(report)


def _probe(report: Report, client: Client, root: Root, *, writes: bool) -> float | None:
    """The skew of this machine's clock in seconds; None if it is not known."""
    what = "whether the store keeps the conditions of writes, and its clock"
    if not writes:
        report.skip(what, "it takes an object of its own, and --nowrite was given")
        return None
    from bastion.cli.doctor import store_probe

    try:
        return store_probe.probe(
            report, client.store, client.clock, name=secrets.token_hex(8), conditions=root.scheme != "s3"
        )
    except AccessDenied:
        report.skip(what, f"you may not write below {root.url}/{keys.DOCTOR}; ask an administrator of the bastion")
    return None


def _cloud_storage(report: Report, root: Root, found: Documents) -> None:
    from bastion.cli.doctor import cloud_storage
    from bastion.wiring.roots import parse_root

    seen = cloud_storage.examine(report, root, found.mode, user=default_user(), hosts=found.hosts)
    place = found.status.quota.root if found.status is not None else ""
    if place.startswith("gs://") and place != root.url:
        cloud_storage.examine_quota_bucket(report, parse_root(place), found.mode, seen)


def _s3(report: Report, root: Root, found: Documents, *, writes: bool) -> None:
    from bastion.cli.admin import s3_root_check
    from bastion.core.model.provisioning import Provisioning

    report.skip("who may do what", "S3 does not tell; look at the policies in IAM (docs/how-to/run-on-s3.md)")
    if not writes:
        return
    with report.may_skip("whether the service keeps the conditions of writes", "an administrator of the bastion"):
        try:
            for text in s3_root_check.warnings(found.settings or Provisioning(resource_types={}), root):
                found.told.append(text)
                report.warning(text, why="it is not what a ROOT on S3 needs", remedy="see docs/how-to/run-on-s3.md")
        except Refused as error:
            report.error(
                str(error),
                why="two daemons or users would overwrite each other's objects",
                remedy="use a service of docs/how-to/run-on-s3.md",
            )


def _inboxes(report: Report, root: Root, found: Documents) -> None:
    from bastion.wiring.inbox_rights import open_inbox_rights

    rights = open_inbox_rights(root)
    ask = "an administrator of the bastion"
    with report.may_skip("who may write the inboxes", ask):
        for user, problems in sorted(rights.findings(found.identity.users).items()):
            for problem in problems:
                report.error(
                    f"inbox/{user}: {problem}",
                    why="only its user may write an inbox, because what is there counts as his",
                    remedy="see docs/how-to/share-a-bastion.md, and `bastion admin user list`",
                )


def _proxy(report: Report) -> None:
    from bastion.wiring import proxy_doctor

    for found in proxy_doctor.examine(os.environ):
        if not found.good:
            report.error(
                f"storage proxy: {found.what}",
                why="clients started here bypass the encrypting proxy, or cannot reach it",
                remedy=found.advice,
            )


DOCTOR = Command(
    summary="Looks at a bastion's rights, settings and documents, and says what is wrong and what to do.",
    usage="[--root=ROOT] [--nowrite] [--output=json]",
    details="""Compares what everybody may do with what his part in the bastion takes, as far as you may read policies:
        managed folders, the bucket, its project, inboxes; in a folder bucket owners and modes. Looks at the settings of
        the bucket (lifecycle rules, versions, retention), at the quota file, the operator settings and the inboxes'
        users, at the daemon's heartbeat, version and alarms, at clocks, and whether the store keeps the conditions of
        writes. If this shell's environment names an encrypting storage proxy, it does what `bastion proxy doctor` does.

        It changes nothing, except for one object below doctor/ that it makes and deletes; --nowrite leaves that out.
        What you may not read is named as such: on Cloud Storage, an owner of the bucket sees all of it. Exits with 0 if
        nothing is wrong as far as it could look, and with 1 if something is.

        `bastion daemon check-config` checks settings that are not in the bucket yet; `bastion proxy doctor` checks a
        shell without a bastion.""",
    examples=("bastion doctor", "bastion doctor --root=gs://my-bucket/team-bastion --output=json"),
    takes_output=True,
    define=_define,
    run=_run,
)
