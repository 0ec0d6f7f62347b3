"""`bastion proxy run`: the encrypting storage proxy (`bastion.proxy`), in the foreground."""

from __future__ import annotations

import os

from bastion.cli.command import Command, Invocation
from bastion.user_config.user_file import bastion_home


def _run(_call: Invocation) -> int:
    from bastion.wiring import proxy as proxy_setup

    return proxy_setup.serve(os.environ, home=bastion_home(), say=lambda line: print(line, flush=True))


RUN = Command(
    summary="Runs the encrypting storage proxy in the foreground, until SIGTERM or Ctrl-C.",
    usage="",
    details="""Configured by the environment: GCP_KMS_BUCKET_KEY_MAPPING names the buckets to encrypt and their keys;
        for the other variables see docs/reference/proxy.md. bastion launch --proxy runs the same proxy beside a job's
        command on every host. It prints a line when it is ready. Exits with 64 if the environment is malformed or a key
        cannot be used, and with 75 if the key service does not answer.""",
    examples=(
        "GCP_KMS_BUCKET_KEY_MAPPING=team:projects/p/locations/global/keyRings/r/cryptoKeys/k bastion proxy run",
        "GCS_PROXY_KEYRING=keyring.json GCP_KMS_BUCKET_KEY_MAPPING=... bastion proxy run",
    ),
    takes_target=False,
    run=_run,
)
