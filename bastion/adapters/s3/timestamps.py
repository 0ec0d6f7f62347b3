"""Times of S3's answers, parsed fast: botocore's own parser takes most of the time of a listing."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

from botocore.utils import parse_timestamp

_OF_A_LISTING = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)


def timestamp(found: Any) -> datetime:
    """Parse a time as any of Amazon's services spells it."""
    if isinstance(found, str) and _OF_A_LISTING.fullmatch(found):
        # 3.10 knows no `Z`.
        return datetime.fromisoformat(found[:-1]).replace(tzinfo=timezone.utc)
    parsed: datetime = parse_timestamp(found)
    return parsed
