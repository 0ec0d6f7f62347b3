"""The store on a real S3 server: what the contract's suite does not see."""

from __future__ import annotations

from tests.support.s3_server import S3Server


def test_an_object_that_was_written_is_found_as_the_write_said(s3_server: S3Server) -> None:
    store = s3_server.store(s3_server.new_bucket())
    meta = store.put("a", b"1", generation=0)
    assert store.head("a") == meta
    assert [*store.list("")] == [meta]
