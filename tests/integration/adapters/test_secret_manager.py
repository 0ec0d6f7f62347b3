"""Secrets of Google Secret Manager: the request, and what each of its answers means."""

from __future__ import annotations

import base64
import logging
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

from bastion.adapters.secrets.secret_manager import SecretManagerSecrets
from bastion.core.errors import SecretUnavailable, SecretUnreadable
from bastion.testing.manual_clock import ManualClock
from tests.support.scripted_server import nobody
from tests.support.secret_manager_server import ACCOUNT, SecretManagerServer, Token, serving

VALUE = b"v4lue-of-the-secret"


@pytest.fixture
def service() -> Iterator[SecretManagerServer]:
    with serving() as service:
        service.add("key", b"older")
        service.add("key", VALUE)
        yield service


@pytest.fixture
def source(service: SecretManagerServer) -> SecretManagerSecrets:
    return SecretManagerSecrets(endpoint=service.endpoint, log_in=Token)


def unreadable(source: SecretManagerSecrets, where: str = "//our-team/key") -> str:
    with pytest.raises(SecretUnreadable) as raised:
        source.read(where)
    assert VALUE.decode() not in "".join(traceback.format_exception(raised.value))
    return str(raised.value)


def unavailable(source: SecretManagerSecrets) -> str:
    with pytest.raises(SecretUnavailable) as raised:
        source.read("//our-team/key")
    assert VALUE.decode() not in "".join(traceback.format_exception(raised.value))
    return str(raised.value)


def test_one_request_asks_for_the_newest_version_with_the_hosts_token(
    service: SecretManagerServer, source: SecretManagerSecrets
) -> None:
    assert source.read("//our-team/key") == VALUE.decode()
    [(method, path, headers)] = service.asked
    assert (method, path) == ("GET", "/v1/projects/our-team/secrets/key/versions/latest:access")
    assert headers["authorization"] == "Bearer the-workers-token"


def test_a_version_can_be_named(source: SecretManagerSecrets) -> None:
    assert source.read("//our-team/key/1") == "older"


def test_a_later_version_is_read_anew(service: SecretManagerServer, source: SecretManagerSecrets) -> None:
    source.read("//our-team/key")
    service.add("key", b"newest")
    assert source.read("//our-team/key") == "newest"


def test_a_password_of_netrc_does_not_replace_the_token(
    service: SecretManagerServer, source: SecretManagerSecrets, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    source.read("//our-team/key")
    assert service.asked[0][2]["authorization"] == "Bearer the-workers-token"


def test_a_missing_secret_and_version_say_how_to_create_one(source: SecretManagerSecrets) -> None:
    assert unreadable(source, "//our-team/none") == (
        "sm://our-team/none does not exist: Secret [projects/our-team/secrets/none] not found or has no versions; "
        "create it with `gcloud secrets create none --project=our-team --data-file=FILE`, or correct the reference"
    )
    assert "versions/9] not found" in unreadable(source, "//our-team/key/9")


def test_a_denied_secret_names_role_and_account(service: SecretManagerServer, source: SecretManagerSecrets) -> None:
    service.readers["key"] = {"another"}
    said = unreadable(source)
    assert said.startswith(
        "sm://our-team/key: this host may not read it, or it does not exist: Permission 'secretmanager"
    )
    assert said.endswith(
        "run `gcloud secrets add-iam-policy-binding key --project=our-team "
        f"--member=serviceAccount:{ACCOUNT} --role=roles/secretmanager.secretAccessor`"
    )


def test_an_api_that_is_off_says_how_to_turn_it_on(service: SecretManagerServer, source: SecretManagerSecrets) -> None:
    service.answers.append((403, "Secret Manager API has not been used in project 1 before or it is disabled."))
    assert "run `gcloud services enable secretmanager.googleapis.com --project=our-team`" in unreadable(source)


@pytest.mark.parametrize("state", ["DISABLED", "DESTROYED"])
def test_a_version_that_is_not_enabled(service: SecretManagerServer, source: SecretManagerSecrets, state: str) -> None:
    service.add("key", VALUE, state)
    said = unreadable(source)
    assert f"versions/3] is in {state} state; version latest (the newest one, also if it is disabled" in said
    assert source.read("//our-team/key/2") == VALUE.decode()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again(service: SecretManagerServer, source: SecretManagerSecrets, status: int) -> None:
    service.answers.append((status, "come back later"))
    assert unavailable(source) == f"sm://our-team/key: Secret Manager answered {status} come back later; trying again"
    assert source.read("//our-team/key") == VALUE.decode()


def test_a_refusal_is_waited_for_if_the_same_was_allowed_before(service: SecretManagerServer) -> None:
    clock = ManualClock()
    source = SecretManagerSecrets(endpoint=service.endpoint, log_in=Token, monotonic=clock.monotonic)
    source.read("//our-team/key")
    service.readers["key"] = set()
    assert "this host may not read it" in unavailable(source)
    clock.advance(599.0)
    unavailable(source)
    clock.advance(2.0)
    unreadable(source)
    del service.readers["key"]
    source.read("//our-team/key")
    service.readers["key"] = set()
    unavailable(source)


def _wrong_sum(document: dict[str, Any]) -> Any:
    document["payload"]["data"] = base64.b64encode(b"X" + VALUE[1:]).decode()
    return document


def test_a_damaged_value_is_fetched_again(service: SecretManagerServer, source: SecretManagerSecrets) -> None:
    service.answers.append(_wrong_sum)
    assert unavailable(source).endswith("damaged in transit: its checksum differs; trying again")
    assert source.read("//our-team/key") == VALUE.decode()


@pytest.mark.parametrize(
    "answer", ["[]", "", VALUE.decode(), "{", '{"payload": 1}', f'{{"payload": {{"data": "{VALUE.decode()}"}}}}']
)
def test_what_is_not_an_answer_of_the_service_is_not_shown(
    service: SecretManagerServer, source: SecretManagerSecrets, answer: str
) -> None:
    service.answers.append(lambda _: answer)
    assert "is not an answer of Secret Manager" in unavailable(source)


@pytest.mark.parametrize("value", [b"", b"\n"])
def test_an_empty_value_is_refused(service: SecretManagerServer, source: SecretManagerSecrets, value: bytes) -> None:
    service.add("key", value)
    assert unreadable(source) == "sm://our-team/key is empty; write the secret's value there"


def test_a_value_with_a_nul_byte_is_refused(service: SecretManagerServer, source: SecretManagerSecrets) -> None:
    service.add("key", b"a\0b")
    assert "contains a NUL byte" in unreadable(source)


@pytest.mark.parametrize("size", [64 * 1024 + 1, 1024 * 1024])
def test_a_longer_value_than_the_service_stores_is_not_read(
    service: SecretManagerServer, source: SecretManagerSecrets, size: int
) -> None:
    service.add("key", b"x" * size)
    assert "sm://our-team/key is larger than 64 KiB, too large for a variable" in unreadable(source)


def test_an_endless_answer_is_given_up(service: SecretManagerServer) -> None:
    ticks = iter(range(0, 1000, 15))
    source = SecretManagerSecrets(
        endpoint=service.endpoint, log_in=Token, call_seconds=20.0, monotonic=lambda: float(next(ticks))
    )
    service.add("key", b"x" * 60_000)
    assert "answers too slowly" in unavailable(source)


def test_a_service_that_nobody_answers_for_is_tried_again() -> None:
    with nobody() as port:
        said = unavailable(SecretManagerSecrets(endpoint=f"http://127.0.0.1:{port}", log_in=Token))
    assert (
        f"Secret Manager cannot be reached (ConnectionError); trying again; check that this host can reach http://127.0.0.1:{port}"
        in said
    )


class _Failing(Token):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def before_request(self, *_: object) -> None:
        raise self._error


def test_a_host_without_credentials_says_what_to_attach() -> None:
    def log_in() -> Token:
        raise DefaultCredentialsError("none here")

    said = unreadable(SecretManagerSecrets(log_in=log_in))
    assert said == (
        "sm://our-team/key: this host has no Google credentials; attach a service account with the scope "
        "cloud-platform to this host"
    )


def test_a_token_that_cannot_be_had_now_is_waited_for_and_one_that_is_refused_is_not() -> None:
    refused, unreachable = RefreshError("invalid_grant"), TransportError("no route")
    assert "credentials do not work (invalid_grant)" in unreadable(
        SecretManagerSecrets(log_in=lambda: _Failing(refused))
    )
    assert "no access token yet" in unavailable(SecretManagerSecrets(log_in=lambda: _Failing(unreachable)))


def test_no_log_line_has_the_value(
    service: SecretManagerServer, source: SecretManagerSecrets, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    source.read("//our-team/key")
    assert VALUE.decode() not in caplog.text
    assert base64.b64encode(VALUE).decode() not in caplog.text
