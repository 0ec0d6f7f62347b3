"""Generations of objects on S3, which has none."""

from __future__ import annotations

from bastion.adapters.s3.generations import generation_of

EMPTY = '"d41d8cd98f00b204e9800998ecf8427e"'
ONE = '"c4ca4238a0b923820dcc509a6f75849b"'
NOW = 1_795_424_647.0


def test_the_same_bytes_have_another_generation_a_second_later() -> None:
    assert generation_of(EMPTY, NOW) < generation_of(EMPTY, NOW + 1) < generation_of(EMPTY, NOW + 86400)


def test_other_bytes_have_another_generation_within_the_second() -> None:
    assert generation_of(EMPTY, NOW) != generation_of(ONE, NOW)
    assert generation_of(ONE, NOW) == generation_of(ONE, NOW + 0.9) == generation_of(ONE.strip('"'), NOW)


def test_an_object_of_an_upload_in_parts_has_the_generation_of_its_etag() -> None:
    etag = '"8a5e5b1f9f3b1f6a3f5a6b1c2d3e4f50-2"'
    assert generation_of(etag, NOW) == generation_of(etag, NOW - 3600) > 0
    assert generation_of(etag, NOW) != generation_of(etag.replace("-2", "-3"), NOW)


def test_a_generation_is_positive_and_fits_in_63_bits() -> None:
    for seconds in (0.0, NOW, 2.0**32 - 1, 2.0**40):
        for etag in (EMPTY, ONE, '"CJjk0eH3/esCEAE="', '"8a5e-10000"'):
            assert 0 < generation_of(etag, seconds) < 2**63
