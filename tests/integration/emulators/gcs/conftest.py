"""The storage half of the endpoint, with the bucket `lake`."""

from __future__ import annotations

from tests.support.gcs_objects import bucket, buckets

__all__ = ["bucket", "buckets"]
