"""Which folders a key mapping reaches into; what it means and refuses is in tests/unit/proxy/test_settings.py."""

from __future__ import annotations

import pytest

from bastion.core.encryption.key_mapping import KeyMapping
from bastion.core.errors import Refused

KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"


@pytest.mark.parametrize(
    ("place", "reached"),
    [
        ("lake", True),
        ("lake/team", True),
        ("lake/team-bastion/", True),
        ("lake/team-bastion/outputs", True),
        ("lake/team-bastion-2/", False),
        ("lake/ckpt/", False),
        ("lake-2", False),
    ],
)
def test_a_mapping_tells_whether_it_encrypts_anything_in_a_folder(place: str, reached: bool) -> None:
    mapping = KeyMapping.parse(f"{place}:{KEY},other:{KEY}")
    found = mapping.overlapping("lake", "team-bastion/")
    assert (found is not None) == reached
    assert found is None or f"{found.bucket}/{found.prefix}".startswith(place)


def test_a_refusal_names_what_was_read() -> None:
    with pytest.raises(Refused, match="--proxy: 'lake' is not"):
        KeyMapping.parse("lake", called="--proxy")
