"""What the store makes of `Content-Range` in answers to whole reads, where it has no meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from bastion.net.http1 import Request, Response
from tests.support.gcs_storage import Storage


class Misleading(Storage):
    """Says of every whole read that it is part of something else."""

    def _answer(self, request: Request) -> Response:
        response = super()._answer(request)
        if response.status == 200 and "alt=media" in request.target:
            response.headers.set("Content-Range", "bytes 0-1/2")
        return response


@pytest.mark.parametrize("start", [0, 3])
def test_content_range_of_an_answer_with_200_is_ignored(tmp_path: Path, start: int) -> None:
    storage = Misleading(tmp_path)
    storage.open()
    try:
        store = storage.store(storage.new_bucket())
        written = store.put("k", b"0123456", generation=0)
        found = store.get("k", start=start)
    finally:
        storage.close()
    assert (found.data, found.meta.size) == (b"0123456"[start:], 7)
    assert found.meta.generation == written.generation
