"""Secrets in Google Secret Manager, read by the host's own identity.

The call is `projects.secrets.versions.access` of the REST API
(https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets.versions/access).

Invariant: no message, log line or chained exception has what came in an answer with a value. So the session is ours:
google-auth's logs answers when debugging is on.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import google.auth
import google_crc32c
import requests
from google.auth.credentials import Credentials
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError, TransportError
from google.auth.transport.requests import Request

import bastion
from bastion.adapters.requests_session import read_environment
from bastion.adapters.secrets.values import checked, too_large, without_line_end
from bastion.core import limits
from bastion.core.errors import SecretUnavailable, SecretUnreadable
from bastion.core.model.secrets import SecretVersion, secret_version
from bastion.core.plain_text import plain

ENDPOINT = "https://secretmanager.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_ROLE = "roles/secretmanager.secretAccessor"
_CALL_SECONDS = 20.0
_SILENT_SECONDS = 5.0
# Base64 of the longest value, and some lines of JSON around it.
_ANSWER_MAX_BYTES = 2 * limits.SECRET_MAX_BYTES
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
_SAID_MAX_CHARS = 300
_API_IS_OFF = re.compile(r"SERVICE_DISABLED|has not been used in project|it is disabled")
_SEND_ACCOUNT = "attach a service account with the scope cloud-platform to this host"


class SecretManagerSecrets:
    """Reads `sm://PROJECT/SECRET[/VERSION]`. One line end at the end is not part of the value.

    A refusal is final, unless this host was allowed the same before: then it may pass within
    `limits.REFUSED_MAX_SECONDS`, as one of a bucket.
    """

    def __init__(
        self,
        *,
        endpoint: str = ENDPOINT,
        log_in: Callable[[], Credentials] | None = None,
        call_seconds: float = _CALL_SECONDS,
        refused_max_seconds: float = limits.REFUSED_MAX_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`log_in`: returns the host's credentials; by default Application Default Credentials."""
        self._endpoint = endpoint
        self._log_in = log_in or _default_credentials
        self._call_seconds = call_seconds
        self._refused_max_seconds = refused_max_seconds
        self._monotonic = monotonic
        self._allowed: set[str] = set()
        self._refused_since: dict[str, float] = {}

    def read(self, where: str) -> str:
        what = f"sm:{where}"
        try:
            wanted = secret_version(where)
        except ValueError as error:
            raise SecretUnreadable(f"{what} {error}") from None
        status, data = self._ask(wanted, what)
        if status != 200:
            raise self._refusal(wanted, what, status, data)
        value = checked(without_line_end(os.fsdecode(_payload(data, what))), what)
        self._allowed.add(where)
        self._refused_since.pop(where, None)
        return value

    def _ask(self, wanted: SecretVersion, what: str) -> tuple[int, bytes]:
        """Return the status and the body of the answer."""
        name = f"projects/{wanted.project}/secrets/{wanted.secret}/versions/{wanted.version}"
        url = f"{self._endpoint}/v1/{quote(name)}:access"
        headers = {"Accept": "application/json", "User-Agent": f"bastion/{bastion.__version__}"}
        self._authorize(headers, url, what)
        until = self._monotonic() + self._call_seconds
        try:
            with requests.Session() as session:
                read_environment(session, url)
                answer = session.get(url, headers=headers, timeout=_SILENT_SECONDS, stream=True, allow_redirects=False)
                body = b""
                for piece in answer.iter_content(8192):
                    body += piece
                    if len(body) > _ANSWER_MAX_BYTES:
                        raise too_large(what)
                    if self._monotonic() > until:
                        raise SecretUnavailable(f"{what}: Secret Manager answers too slowly; trying again")
                return answer.status_code, body
        except requests.RequestException as error:
            raise SecretUnavailable(
                f"{what}: Secret Manager cannot be reached ({type(error).__name__}); trying again; check that this "
                f"host can reach {self._endpoint}"
            ) from None

    def _authorize(self, headers: dict[str, str], url: str, what: str) -> None:
        """Add the access token."""
        try:
            self._credentials.before_request(_request(), "GET", url, headers)  # type: ignore[no-untyped-call]
        except DefaultCredentialsError as error:
            raise SecretUnreadable(f"{what}: this host has no Google credentials; {_SEND_ACCOUNT}") from error
        except GoogleAuthError as error:
            said = plain(str(error))[:_SAID_MAX_CHARS]
            unreachable = isinstance(error, TransportError) or (
                isinstance(error, RefreshError) and isinstance(error.__cause__ or error.__context__, TransportError)
            )
            if error.retryable or unreachable:
                raise SecretUnavailable(f"{what}: no access token yet ({said}); trying again") from error
            raise SecretUnreadable(
                f"{what}: this host's Google credentials do not work ({said}); {_SEND_ACCOUNT}"
            ) from error

    @functools.cached_property
    def _credentials(self) -> Credentials:
        return self._log_in()

    def _refusal(self, wanted: SecretVersion, what: str, status: int, data: bytes) -> Exception:
        """The error that an answer without a value means."""
        project, secret, version = wanted.project, wanted.secret, wanted.version
        reason, said = _error_of(data)
        if status in _RETRIED:
            return SecretUnavailable(f"{what}: Secret Manager answered {status} {said}".rstrip() + "; trying again")
        if status in (401, 403):
            problem = self._denied(wanted, what, reason, said)
            where = what.removeprefix("sm:")
            since = self._refused_since.setdefault(where, self._monotonic())
            if where in self._allowed and self._monotonic() - since < self._refused_max_seconds:
                return SecretUnavailable(problem)
            return SecretUnreadable(problem)
        if status == 404:
            return SecretUnreadable(
                f"{what} does not exist: {said}; create it with `gcloud secrets create {secret} --project={project} "
                "--data-file=FILE`, or correct the reference"
            )
        if "FAILED_PRECONDITION" in reason:
            newest = " (the newest one, also if it is disabled or destroyed)" if version == "latest" else ""
            return SecretUnreadable(
                f"{what} cannot be read: {said}; version {version}{newest} must be enabled: run `gcloud secrets "
                f"versions enable`, add a version, or name another one: sm://{project}/{secret}/VERSION"
            )
        return SecretUnreadable(f"{what}: Secret Manager answered {status} {said}; correct the reference")

    def _denied(self, wanted: SecretVersion, what: str, reason: str, said: str) -> str:
        if _API_IS_OFF.search(f"{reason} {said}"):
            return (
                f"{what}: the Secret Manager API is off in project {wanted.project}; run `gcloud services enable "
                f"secretmanager.googleapis.com --project={wanted.project}`"
            )
        email = getattr(self._credentials, "service_account_email", "") or ""
        member = f"serviceAccount:{email}" if "@" in str(email) else "MEMBER"
        return (
            f"{what}: this host may not read it, or it does not exist: {said}; create it, or run `gcloud secrets "
            f"add-iam-policy-binding {wanted.secret} --project={wanted.project} --member={member} --role={_ROLE}`"
        )


def _default_credentials() -> Credentials:
    found: Credentials = google.auth.default(scopes=[_SCOPE])[0]
    return found


def _request() -> Callable[..., Any]:
    return functools.partial(Request(), timeout=_SILENT_SECONDS)


def _payload(data: bytes, what: str) -> bytes:
    """The value in an answer, with the service's own checksum. Raises SecretUnavailable."""
    found = _decoded(data)
    if found is None:
        raise SecretUnavailable(f"{what}: what came is not an answer of Secret Manager; trying again")
    value, checksum = found
    if checksum is not None and checksum != google_crc32c.value(value):
        raise SecretUnavailable(f"{what}: the value was damaged in transit: its checksum differs; trying again")
    return value


def _decoded(data: bytes) -> tuple[bytes, int | None] | None:
    """A value and its checksum, if there is one; None: not of the API. No exception leads to what came."""
    try:
        payload = json.loads(data)["payload"]
        value = base64.b64decode(payload.get("data", ""), validate=True)
        # An int64, which is a string in JSON (https://protobuf.dev/programming-guides/json).
        return value, int(payload["dataCrc32c"]) if "dataCrc32c" in payload else None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _error_of(data: bytes) -> tuple[str, str]:
    """The status with its reasons, and the message of an error (https://google.aip.dev/193)."""
    try:
        error = json.loads(data)["error"]
        details = [str(each.get("reason", "")) for each in error.get("details") or () if isinstance(each, dict)]
        said = plain(str(error["message"]))[:_SAID_MAX_CHARS].rstrip(".")
        return " ".join([str(error.get("status", "")), *details]), said
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "", ""
