"""The contract of `bastion.ports.Kms`, sentence by sentence, on every adapter and on the fake; then each one's own.

Cloud KMS is the unmodified client against a server of the real API in this process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from google.cloud import kms_v1

from bastion.adapters.kms import keyring
from bastion.adapters.kms.cloud import CloudKms
from bastion.adapters.kms.keyring import KeyringKms
from bastion.core.errors import KmsError, KmsRefused, KmsUnavailable, Refused
from bastion.ports import Kms
from bastion.testing.memory_kms import MemoryKms
from tests.support.cloud_kms_server import CloudKmsServer

KEY = "projects/p/locations/us-central2/keyRings/r/cryptoKeys/k"
OTHER = "projects/p/locations/us-central2/keyRings/r/cryptoKeys/other"
MISSING = "projects/p/locations/us-central2/keyRings/r/cryptoKeys/missing"
DATA = b"thirty-two bytes of a plain key!"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A key service that holds `KEY` and `OTHER`."""

    open: Callable[[], Kms]
    rotate: Callable[[str], object]


@contextlib.contextmanager
def _memory(folder: Path) -> Iterator[Service]:
    kms = MemoryKms(KEY, OTHER)
    yield Service(open=lambda: kms, rotate=kms.rotate)


@contextlib.contextmanager
def _keyring(folder: Path) -> Iterator[Service]:
    path = folder / "keyring.json"
    keyring.create(path, KEY)
    keyring.create(path, OTHER)
    yield Service(open=lambda: KeyringKms(path), rotate=lambda key: keyring.rotate(path, key))


@contextlib.contextmanager
def _cloud(folder: Path) -> Iterator[Service]:
    server = CloudKmsServer(KEY, OTHER)
    try:
        yield Service(open=lambda: CloudKms(server.client()), rotate=server.rotate)
    finally:
        server.close()


BACKENDS: dict[str, Callable[[Path], AbstractContextManager[Service]]] = {
    "memory": _memory,
    "keyring": _keyring,
    "cloud-kms": _cloud,
}


@pytest.fixture(params=sorted(BACKENDS))
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    with BACKENDS[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture
def kms(service: Service) -> Kms:
    return service.open()


def test_what_was_wrapped_comes_back_also_to_another_client(service: Service) -> None:
    wrapped = service.open().wrap(KEY, DATA, associated=b"context")
    assert service.open().unwrap(KEY, wrapped.version, wrapped.data, associated=b"context") == DATA
    assert DATA not in wrapped.data
    assert len(wrapped.data) <= 1024


def test_the_same_key_is_never_wrapped_alike(kms: Kms) -> None:
    assert len({kms.wrap(KEY, DATA, associated=b"").data for _ in range(5)}) == 5


def test_wrapping_uses_the_primary_and_a_rotation_makes_another_one(service: Service, kms: Kms) -> None:
    before = kms.primary(KEY)
    assert kms.wrap(KEY, DATA, associated=b"").version == before == "1"
    service.rotate(KEY)
    assert kms.wrap(KEY, DATA, associated=b"").version == kms.primary(KEY) == "2"
    assert kms.primary(OTHER) == "1"


def test_what_an_older_version_wrapped_opens_after_rotations(service: Service, kms: Kms) -> None:
    wrapped = [kms.wrap(KEY, DATA, associated=b"context")]
    for _ in range(2):
        service.rotate(KEY)
        wrapped.append(kms.wrap(KEY, DATA, associated=b"context"))
    assert [one.version for one in wrapped] == ["1", "2", "3"]
    for one in wrapped:
        assert kms.unwrap(KEY, one.version, one.data, associated=b"context") == DATA


@pytest.mark.parametrize("associated", [b"", b"contex", b"context "])
def test_other_associated_data_is_refused(kms: Kms, associated: bytes) -> None:
    wrapped = kms.wrap(KEY, DATA, associated=b"context")
    with pytest.raises(KmsRefused):
        kms.unwrap(KEY, wrapped.version, wrapped.data, associated=associated)


def test_what_another_key_wrapped_is_refused(kms: Kms) -> None:
    wrapped = kms.wrap(OTHER, DATA, associated=b"")
    with pytest.raises(KmsRefused):
        kms.unwrap(KEY, wrapped.version, wrapped.data, associated=b"")


@pytest.mark.parametrize("at", [0, 8, 20, -1])
def test_what_was_changed_is_refused(kms: Kms, at: int) -> None:
    wrapped = kms.wrap(KEY, DATA, associated=b"")
    data = bytearray(wrapped.data)
    data[at] ^= 1
    with pytest.raises(KmsRefused):
        kms.unwrap(KEY, wrapped.version, bytes(data), associated=b"")


@pytest.mark.parametrize("data", [b"", b"x", bytes(12), bytes(100)], ids=["empty", "byte", "nonce", "zeros"])
def test_what_was_never_wrapped_is_refused(kms: Kms, data: bytes) -> None:
    with pytest.raises(KmsRefused):
        kms.unwrap(KEY, "1", data, associated=b"")


def test_a_key_that_does_not_exist_is_refused_by_name(kms: Kms) -> None:
    wrapped = kms.wrap(KEY, DATA, associated=b"")
    for attempt in (
        lambda: kms.wrap(MISSING, DATA, associated=b""),
        lambda: kms.unwrap(MISSING, "1", wrapped.data, associated=b""),
        lambda: kms.primary(MISSING),
    ):
        with pytest.raises(KmsRefused, match=MISSING) as refused:
            attempt()
        assert "thirty-two" not in repr((refused.value, refused.value.__cause__, refused.value.__context__))


def test_threads_may_call_at_once(kms: Kms) -> None:
    def there_and_back(number: int) -> bool:
        data = number.to_bytes(32, "big")
        wrapped = kms.wrap(KEY, data, associated=b"")
        return kms.unwrap(KEY, wrapped.version, wrapped.data, associated=b"") == data

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(there_and_back, range(40)))


def test_what_is_wrapped_does_not_show(kms: Kms) -> None:
    wrapped = kms.wrap(KEY, DATA, associated=b"")
    assert repr(wrapped) == "WrappedKey(version='1')"


# The keyring's own.


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "keyring.json"
    keyring.create(path, KEY)
    return path


def test_a_keyring_is_readable_by_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "keyring.json"
    before = os.umask(0)
    try:
        keyring.create(path, KEY)
        keyring.rotate(path, KEY)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["keyring.json"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o610])
def test_a_keyring_that_others_may_use_is_refused(ring: Path, mode: int) -> None:
    ring.chmod(mode)
    with pytest.raises(KmsRefused, match="chmod 600"):
        KeyringKms(ring).wrap(KEY, DATA, associated=b"")
    with pytest.raises(KmsRefused, match="chmod 600"):
        keyring.rotate(ring, KEY)


def test_a_keyring_may_be_read_only(ring: Path) -> None:
    ring.chmod(0o400)
    KeyringKms(ring).wrap(KEY, DATA, associated=b"")


def test_a_rotation_is_seen_by_who_has_the_keyring_open(ring: Path) -> None:
    kms = KeyringKms(ring)
    assert kms.primary(KEY) == "1"
    assert keyring.rotate(ring, KEY) == "2"
    assert kms.primary(KEY) == "2"


def test_a_key_is_made_once_and_another_leaves_it_as_it_is(ring: Path) -> None:
    wrapped = KeyringKms(ring).wrap(KEY, DATA, associated=b"")
    with pytest.raises(Refused, match="rotate"):
        keyring.create(ring, KEY)
    keyring.create(ring, OTHER)
    assert KeyringKms(ring).unwrap(KEY, "1", wrapped.data, associated=b"") == DATA


def test_only_full_names_are_keys(ring: Path) -> None:
    for name in ("k", KEY + "/cryptoKeyVersions/1", KEY.upper(), KEY + "\n"):
        with pytest.raises(Refused, match="is not a valid key name"):
            keyring.create(ring, name)


def test_a_key_that_is_not_there_is_not_rotated(ring: Path) -> None:
    with pytest.raises(Refused, match=OTHER):
        keyring.rotate(ring, OTHER)


@pytest.mark.parametrize(
    "content",
    ["", "{}", "not JSON", "[]", '{"format": "bastion keyring", "version": 2, "keys": {}}'],
    ids=["empty", "bare", "text", "list", "newer"],
)
def test_what_is_no_keyring_is_refused_and_never_replaced(ring: Path, content: str) -> None:
    ring.write_text(content)
    for attempt in (
        lambda: keyring.create(ring, OTHER),
        lambda: keyring.rotate(ring, KEY),
        lambda: KeyringKms(ring).primary(KEY),
    ):
        with pytest.raises(KmsRefused, match="not a valid keyring"):
            attempt()
    assert ring.read_text() == content


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9])
def test_no_message_about_a_broken_keyring_holds_a_key(ring: Path, cut: float) -> None:
    text = ring.read_text()
    secret = text.split('"1": "')[1][:43]
    ring.write_text(text[: int(len(text) * cut)])
    _check_no_secret(ring, secret)
    ring.write_text(text.replace(secret, secret[:-8]))
    _check_no_secret(ring, secret)
    ring.write_text(text.replace('"primary": "1"', '"primary": "7"'))
    _check_no_secret(ring, secret)


def _check_no_secret(ring: Path, secret: str) -> None:
    with pytest.raises(KmsRefused) as refused:
        KeyringKms(ring).primary(KEY)
    shown = repr((refused.value, refused.value.__cause__, refused.value.__context__))
    assert not any(secret[at : at + 6] in shown for at in range(len(secret) - 6))


def test_a_keyring_that_is_gone_is_refused_with_the_way_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(KmsRefused, match="keyring create"):
        KeyringKms(tmp_path / "gone").primary(KEY)
    with pytest.raises(KmsRefused, match="folder"):
        keyring.create(tmp_path / "gone" / "keyring.json", KEY)


def test_a_folder_or_a_fifo_is_no_keyring(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    (tmp_path / "folder").mkdir()
    for name in ("fifo", "folder"):
        with pytest.raises(KmsError):
            KeyringKms(tmp_path / name).primary(KEY)


def test_writers_take_turns_and_no_version_is_lost(ring: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: keyring.rotate(ring, KEY), range(24)))
    assert sorted(map(int, made)) == list(range(2, 26))
    assert KeyringKms(ring).primary(KEY) == "25"


def test_a_linked_keyring_is_replaced_where_it_lies(ring: Path, tmp_path: Path) -> None:
    link = tmp_path / "folder" / "link"
    link.parent.mkdir()
    link.symlink_to(ring)
    keyring.rotate(link, KEY)
    assert link.is_symlink()
    assert KeyringKms(ring).primary(KEY) == "2"


# Cloud KMS's own.


@pytest.fixture
def server() -> Iterator[CloudKmsServer]:
    running = CloudKmsServer(KEY)
    yield running
    running.close()


TRANSIENT = [
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
]
FINAL = [
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
]


@pytest.mark.parametrize("code", TRANSIENT, ids=lambda code: code.name)
def test_a_fault_that_passes_is_tried_again_and_one_that_stays_is_unavailable(
    server: CloudKmsServer, code: grpc.StatusCode
) -> None:
    kms = CloudKms(server.client())
    server.faults = [code]
    wrapped = kms.wrap(KEY, DATA, associated=b"")
    server.faults = [code]
    assert kms.unwrap(KEY, "1", wrapped.data, associated=b"") == DATA
    server.faults = [code] * 3
    with pytest.raises(KmsUnavailable, match=KEY):
        kms.unwrap(KEY, "1", wrapped.data, associated=b"")
    assert server.calls == 7


@pytest.mark.parametrize("code", FINAL, ids=lambda code: code.name)
def test_a_refusal_is_told_at_once_with_the_services_words(server: CloudKmsServer, code: grpc.StatusCode) -> None:
    kms = CloudKms(server.client())
    server.faults = [code]
    with pytest.raises(KmsRefused, match=f"fault {code.name}"):
        kms.wrap(KEY, DATA, associated=b"")
    assert server.calls == 1


def test_a_version_that_is_disabled_is_refused(server: CloudKmsServer) -> None:
    kms = CloudKms(server.client())
    wrapped = kms.wrap(KEY, DATA, associated=b"")
    server.disable(KEY, "1")
    with pytest.raises(KmsRefused, match="DISABLED"):
        kms.unwrap(KEY, "1", wrapped.data, associated=b"")


def test_every_request_carries_checksums(server: CloudKmsServer) -> None:
    kms = CloudKms(server.client())
    kms.unwrap(KEY, "1", kms.wrap(KEY, DATA, associated=b"x").data, associated=b"x")
    encrypt, decrypt = server.requests["Encrypt"], server.requests["Decrypt"]
    assert None not in (encrypt.plaintext_crc32c, encrypt.additional_authenticated_data_crc32c)
    assert None not in (decrypt.ciphertext_crc32c, decrypt.additional_authenticated_data_crc32c)


def _not_verified(answer: kms_v1.EncryptResponse) -> kms_v1.EncryptResponse:
    answer.verified_plaintext_crc32c = False
    return answer


def _associated_not_verified(answer: kms_v1.EncryptResponse) -> kms_v1.EncryptResponse:
    answer.verified_additional_authenticated_data_crc32c = False
    return answer


def _other_ciphertext(answer: kms_v1.EncryptResponse) -> kms_v1.EncryptResponse:
    answer.ciphertext = answer.ciphertext[:-1] + bytes([answer.ciphertext[-1] ^ 1])
    return answer


def _no_sum(answer: kms_v1.EncryptResponse) -> kms_v1.EncryptResponse:
    answer.ciphertext_crc32c = None
    return answer


@pytest.mark.parametrize("spoil", [_not_verified, _associated_not_verified, _other_ciphertext, _no_sum])
def test_a_wrapped_key_that_was_changed_on_the_way_is_never_used(
    server: CloudKmsServer, spoil: Callable[[object], object]
) -> None:
    server.spoil = spoil
    with pytest.raises(KmsUnavailable, match="changed in transit"):
        CloudKms(server.client()).wrap(KEY, DATA, associated=b"")
    assert server.calls == 3


def test_an_unwrapped_key_that_was_changed_on_the_way_is_never_used(server: CloudKmsServer) -> None:
    kms = CloudKms(server.client())
    wrapped = kms.wrap(KEY, DATA, associated=b"")

    def other_plaintext(answer: kms_v1.DecryptResponse) -> kms_v1.DecryptResponse:
        answer.plaintext = bytes(32)
        return answer

    server.spoil = other_plaintext
    with pytest.raises(KmsUnavailable, match="changed in transit"):
        kms.unwrap(KEY, "1", wrapped.data, associated=b"")


def test_a_key_of_another_name_in_the_answer_is_refused(server: CloudKmsServer) -> None:
    def other_name(answer: kms_v1.EncryptResponse) -> kms_v1.EncryptResponse:
        answer.name = f"{OTHER}/cryptoKeyVersions/1"
        return answer

    server.spoil = other_name
    with pytest.raises(KmsRefused, match=OTHER):
        CloudKms(server.client()).wrap(KEY, DATA, associated=b"")


def test_a_service_that_is_gone_is_unavailable(server: CloudKmsServer) -> None:
    kms = CloudKms(server.client(), attempt_seconds=0.2)
    server.stop()
    with pytest.raises(KmsUnavailable):
        kms.wrap(KEY, DATA, associated=b"")


def test_not_even_a_log_at_debug_holds_a_key(server: CloudKmsServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(("google", "grpc")):
            caplog.set_level(logging.DEBUG, name)
    kms = CloudKms(server.client())
    wrapped = kms.wrap(KEY, DATA, associated=b"")
    kms.unwrap(KEY, "1", wrapped.data, associated=b"")
    assert not [record for record in caplog.records if "request" in vars(record) or "thirty" in repr(vars(record))]
