"""The documented `unwrap` with Cloud KMS opens what the adapter wrapped."""

from __future__ import annotations

import pytest
from google.cloud import kms

from bastion.adapters.kms.cloud import CloudKms
from tests.support import documented_decryption
from tests.support.cloud_kms_server import CloudKmsServer

KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"


def test_the_page_unwraps_what_cloud_kms_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    server = CloudKmsServer(KEY)
    try:
        wrapped = CloudKms(server.client()).wrap(KEY, b"a session key", associated=b"context")
        monkeypatch.setattr(kms, "KeyManagementServiceClient", server.client)
        names = documented_decryption.run(documented_decryption.programs()[1])
        assert names["unwrap"](KEY, wrapped.data, b"context") == b"a session key"
    finally:
        server.close()
