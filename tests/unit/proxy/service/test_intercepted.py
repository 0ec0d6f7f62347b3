"""Which hosts are the storage service's, however a client writes them."""

from __future__ import annotations

import pytest

from bastion.proxy.service.intercepted import is_storage, split_authority


@pytest.mark.parametrize(
    "host",
    [
        "storage.googleapis.com",
        "STORAGE.googleapis.com.",
        "bucket.storage.googleapis.com",
        "a.b.c_d.storage.googleapis.com",
        "www.googleapis.com",
        "storage.mtls.googleapis.com",
        "storage.us-central1.rep.googleapis.com",
        "bucket.storage.europe-west4.rep.googleapis.com",
        "storage-psc1.p.googleapis.com",
        "storage-download.googleapis.com",
        "storage-upload.googleapis.com",
        "content-storage.googleapis.com",
        "commondatastorage.googleapis.com",
        "bucket.commondatastorage.googleapis.com",
        "storage.some.future.kind.googleapis.com",
        "bucket.storage.some.future.kind.googleapis.com",
        "storage-future.googleapis.com",
        "private.googleapis.com",
        "restricted.googleapis.com",
        "firebasestorage.googleapis.com",
    ],
)
def test_the_storage_services_hosts_are_known(host: str) -> None:
    assert is_storage(split_authority(host)[0])
    assert is_storage(split_authority(f"{host}:443")[0])


@pytest.mark.parametrize(
    "host",
    [
        "googleapis.com",
        "tpu.googleapis.com",
        "bigquerystorage.googleapis.com",
        "storagetransfer.googleapis.com",
        "oauth2.googleapis.com",
        "storage.googleapis.com.example.org",
        "xstorage.googleapis.com",
        "storagexgoogleapis.com",
        "storage-a.b.p.googleapis.com",
        "huggingface.co",
        "127.0.0.1",
        "[::1]",
    ],
)
def test_other_hosts_are_left_alone(host: str) -> None:
    assert not is_storage(split_authority(host)[0])


@pytest.mark.parametrize(
    ("authority", "expected"),
    [
        ("Host", ("host", None)),
        ("host.:8080", ("host", 8080)),
        ("[::1]:443", ("::1", 443)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
    ],
)
def test_an_authority_is_a_host_and_perhaps_a_port(authority: str, expected: tuple[str, int | None]) -> None:
    assert split_authority(authority) == expected


@pytest.mark.parametrize(
    "authority",
    [
        "",
        ".",
        ":443",
        "h:",
        "h:0",
        "h:65536",
        "h:-1",
        "a b",
        "u@h",
        "h/p",
        "h\n",
        "h\0",
        "caf\xe9",
        "[::1",
        "::1",
        "h%2e",
    ],
    ids=repr,
)
def test_what_is_no_authority_is_refused(authority: str) -> None:
    with pytest.raises(ValueError, match="not a host"):
        split_authority(authority)
