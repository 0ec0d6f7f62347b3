"""`bastion proxy run`: the encrypting storage proxy, in the foreground.

Layer: cli. What there is to know of it is in `bastion.proxy`; this is what a user sees of it.
"""

from __future__ import annotations

import os

from bastion.cli.command import Command, Invocation
from bastion.cli.target import bastion_home


def _run(_call: Invocation) -> int:
    from bastion.wiring import proxy as proxy_setup

    return proxy_setup.serve(os.environ, home=bastion_home(), say=lambda line: print(line, flush=True))


RUN = Command(
    summary="Runs the encrypting storage proxy in the foreground, until SIGTERM or Ctrl-C.",
    usage="",
    details="""Everything is in the environment: GCP_KMS_BUCKET_KEY_MAPPING says which buckets are encrypted under which
        key, docs/reference/proxy.md has the others. bastion launch --proxy runs it beside a job's command on every
        host; this is the same by hand. It says when it is ready. With a malformed environment or a key that cannot be
        used it ends with 64, where the key service does not answer with 75.""",
    examples=(
        "GCP_KMS_BUCKET_KEY_MAPPING=team:projects/p/locations/global/keyRings/r/cryptoKeys/k bastion proxy run",
        "GCS_PROXY_KEYRING=keyring.json GCP_KMS_BUCKET_KEY_MAPPING=... bastion proxy run",
    ),
    takes_target=False,
    run=_run,
)
