"""`bastion proxy rewrap`: after a key's rotation, rewrap stored objects with its new version."""

from __future__ import annotations

import os
from dataclasses import asdict

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say
from bastion.core.errors import Refused


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_boolean("dry_run", False, "Only count objects; change nothing.", flag_values=values)


def _run(call: Invocation) -> int:
    from bastion.proxy.rewrapping import rewrap
    from bastion.proxy.settings import MAPPING, ProxySettings
    from bastion.wiring.proxy import envelopes, object_metadata

    bucket, _, prefix = call.operands[0].removeprefix("gs://").partition("/")
    settings = ProxySettings.from_environment(os.environ)
    if not settings.mapping.covers(bucket):
        raise Refused(f"{MAPPING} does not name the bucket {plain(bucket)!r}; nothing in it is encrypted")
    counts = rewrap(
        object_metadata(),
        envelopes(settings),
        settings.mapping,
        bucket=bucket,
        prefix=prefix,
        dry_run=call.flags.dry_run,
        say=lambda line: say(f"bastion: {plain(line)}"),
    )
    if call.json:
        emit_json(asdict(counts))
    else:
        done = "would be rewrapped" if call.flags.dry_run else "rewrapped"
        print(f"{counts.done} {done}, {counts.current} already use the primary version")
        for count, what in (
            (counts.plaintext, "are plaintext; store them again through the proxy"),
            (counts.changed, "changed in the meantime; run this command again"),
            (counts.failed, "failed; see above"),
        ):
            if count:
                print(f"{count} {what}")
    return 1 if counts.failed or counts.changed else 0


REWRAP = Command(
    summary="Rewraps the keys of stored objects with their key's primary version. Contents do not change.",
    usage="gs://BUCKET[/PREFIX] [--dry_run]",
    details="""Reads the same environment as bastion proxy run. Connects to Cloud Storage directly, not through the
        proxy. Jobs may keep reading and writing. You can disable an old version of the key once this command finds
        nothing left to rewrap in every bucket that uses the key.""",
    examples=("bastion proxy rewrap gs://team-checkpoints", "bastion proxy rewrap gs://team/ckpt/ --dry_run"),
    operands=(1, 1),
    takes_target=False,
    takes_output=True,
    define=_define,
    run=_run,
)
