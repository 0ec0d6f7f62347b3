"""Bodies of requests with fields that are given twice."""

from __future__ import annotations

import time

from bastion.emulators.kubernetes.apiserver import decoding


def test_fields_given_twice_are_found_in_time_however_many_there_are() -> None:
    body = b"{" + b",".join(b'"f%d":0' % number for number in range(40_000)) + b',"f7":1}'
    begun = time.process_time()
    assert decoding.repeated_fields(decoding.parsed(body)) == ["f7"]
    assert time.process_time() - begun < 2
