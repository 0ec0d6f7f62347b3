"""Times as S3 and the services that give credentials spell them."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from bastion.adapters.s3.timestamps import timestamp

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "text",
    ["2026-01-02T03:04:05.000Z", "2026-01-02T03:04:05Z", "Fri, 02 Jan 2026 03:04:05 GMT", MOMENT.timestamp()],
)
def test_every_form_is_the_same_moment(text: object) -> None:
    assert timestamp(text).timestamp() == MOMENT.timestamp()
