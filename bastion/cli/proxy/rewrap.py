"""`bastion proxy rewrap`: after a key's rotation, puts stored objects under its new version.

Layer: cli.
"""

from __future__ import annotations

import os
from dataclasses import asdict

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say
from bastion.core.errors import Refused


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_boolean("dry_run", False, "Only count; change nothing.", flag_values=values)


def _run(call: Invocation) -> int:
    from bastion.proxy.rewrapping import rewrap
    from bastion.proxy.settings import MAPPING, ProxySettings
    from bastion.wiring.proxy import envelopes, object_metadata

    bucket, _, prefix = call.operands[0].removeprefix("gs://").partition("/")
    settings = ProxySettings.from_environment(os.environ)
    if not settings.mapping.covers(bucket):
        raise Refused(f"{MAPPING} does not name the bucket {plain(bucket)!r}; nothing of it is encrypted")
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
        print(f"{counts.done} {done}, {counts.current} under the primary version already")
        for count, what in (
            (counts.plaintext, "are plaintext; store them again through the proxy"),
            (counts.changed, "changed in that moment; run this again"),
            (counts.failed, "failed, as said above"),
        ):
            if count:
                print(f"{count} {what}")
    return 1 if counts.failed or counts.changed else 0


REWRAP = Command(
    summary="Puts the keys of stored objects under the primary version of their key. Contents are not touched.",
    usage="gs://BUCKET[/PREFIX] [--dry_run]",
    details="""Reads the same environment as bastion proxy run. Talks to Cloud Storage directly, not through the proxy.
        Jobs may go on reading and writing meanwhile. An old version of the key can be disabled once this finds nothing
        more to do, in every bucket that the key is used for.""",
    examples=("bastion proxy rewrap gs://team-checkpoints", "bastion proxy rewrap gs://team/ckpt/ --dry_run"),
    operands=(1, 1),
    takes_target=False,
    takes_output=True,
    define=_define,
    run=_run,
)
