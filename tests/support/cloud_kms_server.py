"""Cloud KMS in this process: the real API over gRPC, with symmetric keys that rotate, and faults on demand."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import google_crc32c
import grpc
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.cloud import kms_v1
from google.cloud.kms_v1.services.key_management_service.transports import KeyManagementServiceGrpcTransport

_SERVICE = "google.cloud.kms.v1.KeyManagementService"


class CloudKmsServer:
    """One project's keys.

    Attributes:
        calls: How many there were.
        faults: Status codes for the next calls, each used once.
        spoil: Changes answers on their way out, if set; returns what is sent.
        requests: The last one of each method, as it came.
    """

    def __init__(self, *keys: str) -> None:
        self.calls = 0
        self.faults: list[grpc.StatusCode] = []
        self.spoil: Callable[[object], object] | None = None
        self.requests: dict[str, object] = {}
        self._versions = {key: {1: os.urandom(32)} for key in keys}
        self._disabled: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(8))
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                method, request_deserializer=asked.deserialize, response_serializer=answered.serialize
            )
            for name, method, asked, answered in (
                ("Encrypt", self._encrypt, kms_v1.EncryptRequest, kms_v1.EncryptResponse),
                ("Decrypt", self._decrypt, kms_v1.DecryptRequest, kms_v1.DecryptResponse),
            )
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        self._channels: list[grpc.Channel] = []
        self._server.start()

    def client(self) -> kms_v1.KeyManagementServiceClient:
        """The unmodified client, connected to this server."""
        channel = grpc.insecure_channel(f"127.0.0.1:{self._port}", options=[("grpc.enable_http_proxy", 0)])
        self._channels.append(channel)
        return kms_v1.KeyManagementServiceClient(transport=KeyManagementServiceGrpcTransport(channel=channel))

    def stop(self) -> None:
        """Nobody listens any more."""
        self._server.stop(0).wait()

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        self.stop()

    def rotate(self, key: str) -> None:
        versions = self._versions[key]
        versions[max(versions) + 1] = os.urandom(32)

    def disable(self, key: str, version: str) -> None:
        self._disabled.add((key, int(version)))

    def _begin(self, name: str, request: object, context: grpc.ServicerContext, key: str) -> dict[int, bytes]:
        with self._lock:
            self.calls += 1
            self.requests[name] = request
            fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            context.abort(fault, f"fault {fault.name}")
        if key not in self._versions:
            context.abort(grpc.StatusCode.NOT_FOUND, f"CryptoKey {key} not found.")
        return self._versions[key]

    def _encrypt(self, request: kms_v1.EncryptRequest, context: grpc.ServicerContext) -> kms_v1.EncryptResponse:
        versions = self._begin("Encrypt", request, context, request.name)
        version = max(versions)
        _check(request.plaintext, request.plaintext_crc32c, context)
        aad = request.additional_authenticated_data
        _check(aad, request.additional_authenticated_data_crc32c, context)
        nonce = os.urandom(12)
        # As the service does it, the version is part of the ciphertext.
        sealed = version.to_bytes(4, "big") + nonce + AESGCM(versions[version]).encrypt(nonce, request.plaintext, aad)
        return self._sent(
            kms_v1.EncryptResponse(
                name=f"{request.name}/cryptoKeyVersions/{version}",
                ciphertext=sealed,
                ciphertext_crc32c=google_crc32c.value(sealed),
                verified_plaintext_crc32c=request.plaintext_crc32c is not None,
                verified_additional_authenticated_data_crc32c=request.additional_authenticated_data_crc32c is not None,
            )
        )

    def _decrypt(self, request: kms_v1.DecryptRequest, context: grpc.ServicerContext) -> kms_v1.DecryptResponse:
        versions = self._begin("Decrypt", request, context, request.name)
        data, aad = request.ciphertext, request.additional_authenticated_data
        _check(data, request.ciphertext_crc32c, context)
        _check(aad, request.additional_authenticated_data_crc32c, context)
        version = int.from_bytes(data[:4], "big")
        if (request.name, version) in self._disabled:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{request.name} is not enabled, its state is DISABLED.")
        try:
            plain = AESGCM(versions[version]).decrypt(data[4:16], data[16:], aad)
        except (KeyError, ValueError, InvalidTag):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "Decryption failed: the ciphertext is invalid.")
        return self._sent(kms_v1.DecryptResponse(plaintext=plain, plaintext_crc32c=google_crc32c.value(plain)))

    def _sent(self, answer: object) -> object:
        return answer if self.spoil is None else self.spoil(answer)


def _check(data: bytes, crc32c: int | None, context: grpc.ServicerContext) -> None:
    if crc32c is not None and crc32c != google_crc32c.value(data):
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The checksum does not match the data.")
