"""`bastion quota upload FILE`: check a quota file, show what it changes, and put it in force."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from absl import flags

from bastion.cli import phrases
from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say
from bastion.cli.quota import diff, effect, quota_root
from bastion.cli.quota import file as quota_file
from bastion.core.errors import EXIT_INFRASTRUCTURE, EXIT_REFUSED
from quota import Policy, QuotaFileError, load
from quota.diff import difference

if TYPE_CHECKING:
    from bastion.client.quota.upload import QuotaClient, QuotaFile

_NO_POLICY = Policy(tiers=(), weights={}, members={})


def define(values: flags.FlagValues) -> None:
    """The flags of every command that uploads a quota file."""
    quota_root.define(values)
    flags.DEFINE_boolean(
        "yes",
        False,
        "Upload the file even if it stops running jobs, or if its effect is unknown.",
        flag_values=values,
    )
    flags.DEFINE_boolean("dry_run", False, "Show everything and write nothing.", flag_values=values)
    flags.DEFINE_boolean("wait", False, "Wait until the daemon reports that the file is in force.", flag_values=values)


def _run(call: Invocation) -> int:
    path = call.operands[0]
    data = quota_file.read(path)
    try:
        policy = load(data)
    except QuotaFileError as error:
        quota_file.tell_problems(path, error, json=call.json)
        return EXIT_REFUSED
    quota_file.tell_warnings(path, policy)
    quota_client, suffix = quota_root.open_quota_client(call)
    upload = Upload(call, quota_client, suffix, data, policy)
    code = upload.run(quota_client.present())
    if call.json:
        emit_json(upload.document)
    return code


class Upload:
    """One upload; `document` is for `--output=json`."""

    def __init__(self, call: Invocation, quota_client: QuotaClient, suffix: str, data: bytes, policy: Policy) -> None:
        self._call = call
        self._client = quota_client
        self._suffix = suffix
        self._data = data
        self._policy = policy
        self.document: dict[str, Any] = {"valid": True, "url": quota_client.url, "uploaded": False}

    def run(self, present: QuotaFile) -> int:
        """Replace `present`, and only that; return the exit code."""
        call, quota_client = self._call, self._client
        self.document["generation"] = present.generation
        if present.generation and present.data == self._data:
            self.document["difference"] = diff.document(difference(self._policy, self._policy))
            say(
                f"nothing to upload: {plain(quota_client.url)} already has this content "
                f"(generation {present.generation})"
            )
            return self._wait(present.generation)
        refusal = self._check_effect(present)
        if refusal and not call.flags.yes:
            self.document["refused"] = refusal
            say(f"bastion: {refusal}; nothing was written; use --yes to upload it anyway")
            return EXIT_REFUSED
        if call.flags.dry_run:
            say("dry run: nothing was written")
            return 0
        replaced = quota_client.replace(self._data, present)
        self.document |= {"uploaded": True, "generation": replaced.generation, "former": replaced.former or None}
        say(f"uploaded {plain(quota_client.url)} (generation {replaced.generation}); it applies at the next poll")
        if replaced.former:
            say(f"the previous file is kept; to restore it: {plain(self._restore_command(replaced.former))}")
        return self._wait(replaced.generation)

    def _check_effect(self, present: QuotaFile) -> str:
        """Show what the file changes; return why --yes is required, or an empty text."""
        before = self._client.policy_in_force(present)
        if present.problem:
            known = "comparing with the last valid one" if before else "the last valid one is not known here"
            say(f"bastion: the present file is not valid ({plain(present.problem)}); {known}")
        elif not present.generation:
            say(f"there is no quota file {plain(self._client.url)} yet")
        found = difference(before or _NO_POLICY, self._policy)
        forecast = self._client.forecast(before, self._policy)
        self.document["difference"] = diff.document(found)
        self.document["jobs"] = effect.document(forecast)
        if not self._call.json:
            diff.show(found)
            for line in effect.lines(forecast, self._client.now()):
                print(plain(line))
        for doubt in forecast.doubts:
            say(f"bastion: {plain(doubt)}")
        stopped = len(forecast.effect.stopped)
        if stopped:
            return f"this file would stop {phrases.count(stopped, 'running job')}"
        return "it is unknown what this file does to running jobs" if forecast.doubts else ""

    def _restore_command(self, former: str) -> str:
        root = self._client.root
        where = f"{root.url}/{former}"
        if root.local:
            return f"bastion quota upload {shlex.quote(where)}{self._suffix}"
        return f"gcloud storage cat {shlex.quote(where)} | bastion quota upload -{self._suffix}"

    def _wait(self, generation: int) -> int:
        if not self._call.flags.wait or self._call.flags.dry_run:
            return 0
        problem = self._client.await_in_force(generation)
        self.document |= {"in_force": not problem, "problem": problem or None}
        if problem:
            say(f"bastion: generation {generation} is not in force: {plain(problem)}")
            return EXIT_INFRASTRUCTURE
        say(f"generation {generation} is in force")
        return 0


UPLOAD = Command(
    summary="Checks a quota file, shows what it changes and which running jobs it affects, and puts it in force.",
    usage="FILE [--dry_run] [--yes] [--wait] [--quota_root=URL] [--output=json]",
    details="""FILE may be - for stdin. The upload replaces only the file that the difference was shown against. That
        file is kept under project-quotas/former/ and can be uploaded again. A daemon applies the new file at its
        next poll, within seconds.

        A file that would stop running jobs is refused with their names, unless --yes is given; so is any file if no
        daemon publishes what is running. When a project's share or the pool shrinks, jobs keep running until an owner
        reclaims what they borrow. Exits with 64 if the file is not valid or is refused, also with --dry_run.""",
    examples=(
        "bastion quota upload quotas.config --dry_run",
        "bastion quota upload quotas.config --wait",
        "bastion quota upload quotas.config --root=gs://my-bucket/team-bastion --quota_root=gs://my-admins/team-bastion",
    ),
    operands=(1, 1),
    takes_output=True,
    define=define,
    run=_run,
)
