"""What `check-config` says about a ROOT on S3."""

from __future__ import annotations

from collections.abc import Iterator

from bastion.core.model.provisioning import Provisioning
from bastion.wiring.roots import Root, is_versioned
from bastion.wiring.s3_hosts import problems_on_s3


def warnings(settings: Provisioning, root: Root) -> Iterator[str]:
    """Raises Refused for a service that ignores a condition; StoreError."""
    yield from problems_on_s3(settings)
    if is_versioned(root):
        yield (
            f"{root.bucket} keeps versions: each write of the daemon leaves one, and listings slow down with delete "
            "markers; add a lifecycle rule for noncurrent versions (docs/how-to/run-on-s3.md)"
        )
