"""What clouds answer, through the adapters that read it."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import requests
import urllib3
from google.auth.credentials import AnonymousCredentials
from google.cloud import kms_v1, tpu_v2
from google.cloud.storage import Client
from google.protobuf.message import DecodeError

from bastion.adapters.bucket_requests.retry import Patience
from bastion.adapters.gcs.client import prepared
from bastion.adapters.gcs.store import GcsStore
from bastion.adapters.kms import cloud as cloud_kms
from bastion.adapters.kms.keyring import KeyringKms
from bastion.adapters.s3.client import new_client
from bastion.adapters.s3.store import S3Store
from bastion.adapters.secrets.secret_manager import SecretManagerSecrets
from bastion.adapters.tpu.api_terms import queued_message, queued_state, queued_word, slice_state, status_message
from bastion.core.errors import (
    KmsError,
    SecretUnavailable,
    SecretUnreadable,
    StoreError,
)
from bastion.testing.manual_clock import ManualClock
from tests.fuzz.http_messages import answered
from tests.fuzz.mangling import Form
from tests.fuzz.target import Target

# -- storage services -----------------------------------------------------------------------------------------------

_PATIENCE = Patience(
    deadline_seconds=0.5,
    first_pause_seconds=0.01,
    longest_pause_seconds=0.01,
    spare_retries=1,
    retries_per_request=0.01,
)


class _Adapter(requests.adapters.BaseAdapter):
    """Answers every request of `requests` with given bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def send(self, request: requests.PreparedRequest, **_: object) -> requests.Response:  # type: ignore[override]
        try:
            raw = answered(self.data)
        except urllib3.exceptions.InvalidHeader as error:  # as the adapter that this one stands for
            raise requests.exceptions.InvalidHeader(error) from error
        answer = requests.adapters.HTTPAdapter().build_response(request, raw)
        answer.connection = self  # type: ignore[attr-defined]
        return answer

    def close(self) -> None:
        pass


_ADAPTER = _Adapter()


@functools.cache
def _gcs_client() -> Client:
    client = prepared(
        Client(project="p", credentials=AnonymousCredentials(), client_options={"api_endpoint": "http://localhost:1"})
    )
    client._http.mount("http://", _ADAPTER)
    return client


def _store(store: GcsStore | S3Store) -> None:
    """Every operation of a store whose service answers so; one of them must not keep the others from being tried."""
    operations = (
        lambda: store.get("k", max_bytes=1000),
        lambda: store.get_range("k", start=1, size=2),
        lambda: store.head("k"),
        lambda: _few(store.list("p/")),
        lambda: store.put("k", b"data", generation=0),
        lambda: store.delete("k", generation=5),
    )
    failed = 0
    for each in operations:
        try:
            each()
        except StoreError as error:  # noqa: PERF203 - each is tried
            failed += 1
            if failed == len(operations):
                raise error


def _few(metas: Iterator[Any]) -> None:
    """A listing whose every page names a next one has no end."""
    for number, _ in enumerate(metas):
        if number > 20:
            return


def gcs_store(answer: bytes) -> GcsStore:
    """A store whose service answers every request so."""
    _ADAPTER.data = answer
    return GcsStore("b", client=_gcs_client(), clock=ManualClock(), patience=_PATIENCE, write_interval_seconds=0)


def _gcs(data: bytes) -> None:
    _store(gcs_store(data.replace(b'"nextPageToken"', b'"nextPage"')))


@functools.cache
def _s3_client() -> Any:
    client = new_client(
        endpoint_url="http://localhost:1", aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
    )
    client.meta.events.register("before-send.s3", _s3_answer)
    return client


_S3_DATA = [b""]


def _s3_answer(request: Any, **_: object) -> Any:
    from botocore.awsrequest import AWSResponse

    raw = answered(_S3_DATA[0])
    return AWSResponse(request.url, raw.status, raw.headers, raw)


def s3_store(answer: bytes) -> S3Store:
    """A store whose service answers every request so."""
    _S3_DATA[0] = answer
    return S3Store("b", client=_s3_client(), clock=ManualClock(), patience=_PATIENCE)


def _s3(data: bytes) -> None:
    _store(s3_store(data.replace(b"<IsTruncated>true", b"<IsTruncated>false")))


def _gcs_answers() -> Sequence[bytes]:
    resource = {
        "name": "k",
        "size": "4",
        "generation": "17",
        "metageneration": "1",
        "updated": "2026-01-02T03:04:05.006Z",
        "metadata": {"a": "b"},
    }
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    media = b"x-goog-generation: 17\r\nx-goog-hash: crc32c=AAAAAA==\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
    return [
        head + json.dumps(resource).encode(),
        head + json.dumps({"items": [resource], "prefixes": []}).encode(),
        b"HTTP/1.1 200 OK\r\n" + media + b"Content-Length: 4\r\n\r\ndata",
        b"HTTP/1.1 206 Partial Content\r\n" + media + b"Content-Range: bytes 1-2/4\r\nContent-Length: 2\r\n\r\nat",
        b"HTTP/1.1 412 Precondition Failed\r\nContent-Type: application/json\r\n\r\n"
        b'{"error": {"code": 412, "message": "no", "errors": [{"reason": "conditionNotMet"}]}}',
        b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\n\r\n"
        b'{"error": {"code": 403, "message": "x does not have storage.objects.get access"}}',
    ]


def _s3_answers() -> Sequence[bytes]:
    xml = (
        b"<?xml version='1.0'?><ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><Name>b</Name><KeyCount>1</KeyCount>"
        b"<IsTruncated>false</IsTruncated><Contents><Key>p/k</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>"
        b"<ETag>&quot;aa&quot;</ETag><Size>4</Size></Contents></ListBucketResult>"
    )
    facts = b'ETag: "aa"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nx-amz-meta-bastion-write: w\r\n'
    error = b"<Error><Code>%s</Code><Message>no</Message><Region>x</Region></Error>"
    return [
        b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\n\r\n" + xml,
        b"HTTP/1.1 200 OK\r\n" + facts + b"Content-Length: 4\r\n\r\ndata",
        b"HTTP/1.1 206 Partial Content\r\n" + facts + b"Content-Range: bytes 1-2/4\r\nContent-Length: 2\r\n\r\nat",
        b"HTTP/1.1 404 Not Found\r\nContent-Type: application/xml\r\n\r\n" + error % b"NoSuchKey",
        b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\n\r\n" + error % b"AccessDenied",
        b"HTTP/1.1 412 Precondition Failed\r\nContent-Type: application/xml\r\n\r\n" + error % b"PreconditionFailed",
    ]


# -- TPUs, keys, secrets --------------------------------------------------------------------------------------------


def _tpu(data: bytes) -> None:
    """Messages as the gRPC library gives them to the adapter."""
    from bastion.adapters.tpu.client import CloudTpuSettings
    from bastion.adapters.tpu.nodes import ZoneNodes
    from bastion.adapters.tpu.queue import ZoneQueue

    settings = CloudTpuSettings(project="p", zone="z", bastion="team", startup_script="")
    node = tpu_v2.Node.deserialize(data)
    ZoneNodes(settings, mock.Mock(), "z")._status(node)
    status_message(node)
    slice_state(node.state)
    queued = tpu_v2.QueuedResource.deserialize(data)
    ZoneQueue(settings, mock.Mock(), "z")._status(queued)
    queued_word(queued.state.state)
    queued_state(queued.state.state)
    queued_message(queued.state)


def _messages() -> Sequence[bytes]:
    labels = {"bastion-managed": "team", "bastion-run": "aaaaaaaaaa-1"}
    node = tpu_v2.Node(
        name="projects/p/locations/z/nodes/b-a-1-0",
        state=tpu_v2.Node.State.READY,
        labels=labels,
        metadata={"bastion-token": "t", "bastion-slices": "2"},
        health_description="bad",
        symptoms=[tpu_v2.Symptom(symptom_type=tpu_v2.Symptom.SymptomType.LOW_MEMORY, worker_id="0")],
    )
    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(node=node)
    queued = tpu_v2.QueuedResource(
        name="projects/p/locations/z/queuedResources/b-a-1",
        tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]),
        state=tpu_v2.QueuedResourceState(state=tpu_v2.QueuedResourceState.State.SUSPENDED),
    )
    return [tpu_v2.Node.serialize(node), tpu_v2.QueuedResource.serialize(queued)]


_KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"


def _kms(data: bytes) -> None:
    encrypted = kms_v1.EncryptResponse.deserialize(data)
    decrypted = kms_v1.DecryptResponse.deserialize(data)
    client = mock.Mock(encrypt=lambda *_, **__: encrypted, decrypt=lambda *_, **__: decrypted)
    failed = 0
    with mock.patch.object(cloud_kms, "_ATTEMPTS", 1):
        kms = cloud_kms.CloudKms(client)
        for call in (
            lambda: kms.wrap(_KEY, b"data", associated=b"a"),
            lambda: kms.unwrap(_KEY, "1", b"data", associated=b"a"),
        ):
            try:
                call()
            except KmsError:  # noqa: PERF203 - both are tried
                failed += 1
                if failed == 2:
                    raise


def _kms_answers() -> Sequence[bytes]:
    import google_crc32c

    wrapped = kms_v1.EncryptResponse(
        name=f"{_KEY}/cryptoKeyVersions/3",
        ciphertext=b"cipher",
        ciphertext_crc32c=google_crc32c.value(b"cipher"),
        verified_plaintext_crc32c=True,
        verified_additional_authenticated_data_crc32c=True,
    )
    opened = kms_v1.DecryptResponse(plaintext=b"plain", plaintext_crc32c=google_crc32c.value(b"plain"))
    return [kms_v1.EncryptResponse.serialize(wrapped), kms_v1.DecryptResponse.serialize(opened)]


def _keyring(data: bytes) -> None:
    with mock.patch("bastion.adapters.kms.keyring._content", lambda path: data):
        kms = KeyringKms(mock.Mock())
        wrapped = kms.wrap(_KEY, b"data", associated=b"a")
        assert kms.unwrap(_KEY, wrapped.version, wrapped.data, associated=b"a") == b"data"


class _SecretSession(requests.Session):
    def __init__(self) -> None:
        super().__init__()
        self.mount("https://", _ADAPTER)


def _secret(data: bytes) -> None:
    _ADAPTER.data = data
    with mock.patch("requests.Session", _SecretSession):
        value = SecretManagerSecrets(log_in=AnonymousCredentials).read("//my-project/name/1")  # type: ignore[arg-type]
    assert value and "\0" not in value


def _secret_answers() -> Sequence[bytes]:
    import google_crc32c

    value = b'{"name": "projects/1/secrets/name/versions/1", "payload": {"data": "dGV4dA==", "dataCrc32c": "%d"}}'
    value %= google_crc32c.value(b"text")
    error = (
        b'{"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "denied", "details": [{"reason": "X"}]}}'
    )
    head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n\r\n"
    return [
        head % 200 + value,
        head % 403 + error,
        head % 400 + error.replace(b"PERMISSION_DENIED", b"FAILED_PRECONDITION"),
    ]


_KEYRING = (
    b'{"format": "bastion keyring", "version": 1, "keys": {"%s": {"primary": "1", '
    b'"versions": {"1": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}}}}' % _KEY.encode()
)
TARGETS = (
    Target(name="gcs-answer", parse=_gcs, errors=(StoreError,), seeds=_gcs_answers, form=Form.HTTP),
    Target(name="s3-answer", parse=_s3, errors=(StoreError,), seeds=_s3_answers, form=Form.HTTP),
    Target(name="tpu-messages", parse=_tpu, errors=(DecodeError,), seeds=_messages, form=Form.BYTES),
    Target(name="kms-answer", parse=_kms, errors=(DecodeError, KmsError), seeds=_kms_answers, form=Form.BYTES),
    Target(name="keyring", parse=_keyring, errors=(KmsError,), seeds=lambda: [_KEYRING]),
    Target(
        name="secret-answer",
        parse=_secret,
        errors=(SecretUnreadable, SecretUnavailable),
        seeds=_secret_answers,
        form=Form.HTTP,
    ),
)
