"""The `Kms` port on Cloud KMS: symmetric keys, with checksums of everything that is sent.

Needs the extra `kms`. A call is retried within ten seconds while the service is unreachable or a checksum does not
match. The role cloudkms.cryptoKeyEncrypterDecrypter is enough, because wrapping tells the primary version.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

import google_crc32c
import tenacity
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import kms_v1
from google.cloud.kms_v1.services.key_management_service.transports import grpc as transport

from bastion.core.encryption.key_names import is_version
from bastion.core.errors import KmsRefused, KmsUnavailable
from bastion.ports import WrappedKey

_SECONDS = 10.0
_ATTEMPT_SECONDS = 4.0
_ATTEMPTS = 3
_ROLE = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
_T = TypeVar("_T")


def connect() -> CloudKms:
    """Connect with the default credentials; raise KmsRefused if there are none."""
    try:
        return CloudKms(kms_v1.KeyManagementServiceClient())
    except GoogleAuthError as error:
        raise KmsRefused(
            f"there are no credentials for Cloud KMS ({error}); give this VM a service account, or run "
            "'gcloud auth application-default login'"
        ) from error


class CloudKms:
    """Keys in Cloud KMS, behind the `Kms` port; thread-safe."""

    def __init__(self, client: kms_v1.KeyManagementServiceClient, *, attempt_seconds: float = _ATTEMPT_SECONDS) -> None:
        """Wrap a connected client; each try has a deadline of `attempt_seconds`."""
        # At DEBUG the client logs whole requests and answers with plaintext keys.
        logging.getLogger(transport.__name__).setLevel(logging.INFO)
        self._client = client
        self._attempt_seconds = attempt_seconds

    def wrap(self, key: str, data: bytes, *, associated: bytes) -> WrappedKey:
        request = kms_v1.EncryptRequest(
            name=key,
            plaintext=data,
            plaintext_crc32c=google_crc32c.value(data),
            additional_authenticated_data=associated,
            additional_authenticated_data_crc32c=google_crc32c.value(associated),
        )

        def once() -> WrappedKey:
            answer = self._client.encrypt(request, retry=None, timeout=self._attempt_seconds)
            arrived = answer.verified_plaintext_crc32c and answer.verified_additional_authenticated_data_crc32c
            _check_sums(key, bool(arrived) and answer.ciphertext_crc32c == google_crc32c.value(answer.ciphertext))
            version = answer.name.removeprefix(f"{key}/cryptoKeyVersions/")
            if not is_version(version):
                raise KmsRefused(f"Cloud KMS wrapped with {answer.name!r} instead of {key}; name the key in full")
            return WrappedKey(version=version, data=answer.ciphertext)

        return _patiently(f"wrapping with {key}", once)

    def unwrap(self, key: str, version: str, data: bytes, *, associated: bytes) -> bytes:
        request = kms_v1.DecryptRequest(
            name=key,
            ciphertext=data,
            ciphertext_crc32c=google_crc32c.value(data),
            additional_authenticated_data=associated,
            additional_authenticated_data_crc32c=google_crc32c.value(associated),
        )

        def once() -> bytes:
            answer = self._client.decrypt(request, retry=None, timeout=self._attempt_seconds)
            plain = bytes(answer.plaintext)
            _check_sums(key, answer.plaintext_crc32c == google_crc32c.value(plain))
            return plain

        return _patiently(f"unwrapping with {key}, version {version}", once)

    def primary(self, key: str) -> str:
        return self.wrap(key, b"which version is the primary", associated=b"").version


def _check_sums(key: str, match: bool) -> None:
    if not match:
        raise KmsUnavailable(
            f"a request to Cloud KMS for {key}, or its answer, was changed in transit: the checksum does not match; "
            "try again"
        )


def _patiently(what: str, call: Callable[[], _T]) -> _T:
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(KmsUnavailable),
        stop=tenacity.stop_after_attempt(_ATTEMPTS) | tenacity.stop_before_delay(_SECONDS - _ATTEMPT_SECONDS),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
        reraise=True,
    )

    def once() -> _T:
        with _translated(what):
            return call()

    return retrying(once)


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    """Turn the client's exceptions into the port's errors, with the service's message."""
    try:
        yield
    except exceptions.NotFound as error:
        raise KmsRefused(f"{what}: there is no such key: {error.message}; create it, or name another one") from error
    except (exceptions.Forbidden, exceptions.Unauthorized) as error:
        raise KmsRefused(f"{what} is not allowed: {error.message}; give this identity {_ROLE} on the key") from error
    except (
        exceptions.ServerError,
        exceptions.TooManyRequests,
        exceptions.RetryError,
        exceptions.Aborted,
        exceptions.Cancelled,
    ) as error:
        raise KmsUnavailable(f"{what}: Cloud KMS did not answer properly: {error}; try again") from error
    except exceptions.GoogleAPICallError as error:
        raise KmsRefused(
            f"{what} was refused by Cloud KMS: {error.message}; either another key or version wrapped this, "
            "or the key's version is disabled or destroyed; enable it"
        ) from error
    except GoogleAuthError as error:
        raise KmsUnavailable(f"{what}: cannot get an access token: {error}; try again") from error
