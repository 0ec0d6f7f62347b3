"""What looks like a secret in a variable, and how it is hidden."""

from __future__ import annotations

import pytest

from bastion.core import secret_signs

GITHUB = "ghp_" + "Ab1" * 12


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("SOURCE", GITHUB, "a GitHub token"),
        ("X", f"Bearer {GITHUB}", "a GitHub token"),
        ("X", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9Pl", "a JSON web token"),
        ("URL", "postgresql://me:pass@db/x", "a URL with a password"),
        ("URL", "redis://:pass@cache:6379", "a URL with a password"),
        ("WANDB_API_KEY", "0123456789abcdef", "a secret by its name"),
        ("HF_TOKEN", "x", "a secret by its name"),
        ("db_password", "12345", "a secret by its name"),
        ("AWS_SECRET_ACCESS_KEY", "/abc+def", "a secret by its name"),
        ("KEY_FILE", GITHUB, "a GitHub token"),
    ],
)
def test_a_secret_is_found_by_its_value_or_its_name(name: str, value: str, why: str) -> None:
    assert secret_signs.secret_variable(name, value) == why
    assert value not in secret_signs.masked({name: value})[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("TOKENIZER", "gpt2-large"),
        ("MAX_TOKENS", "1000000"),
        ("NUM_TOKENS_SEEN", "123456"),
        ("AUTHOR", "alice"),
        ("MONKEY", "bars"),
        ("KEYBOARD", "dvorak"),
        ("USE_AUTH", "true"),
        ("API_KEY", ""),
        ("PRIVATE_KEY_FILE", "/secrets/key"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "/secrets/key.json"),
        ("PROXY", "http://proxy:3128"),
        ("WHERE", "https://host/path?at=me@example.com"),
        ("REMOTE", "git@example.com:a/b.git"),
    ],
)
def test_what_is_harmless_is_shown(name: str, value: str) -> None:
    assert secret_signs.secret_variable(name, value) == ""
    assert secret_signs.masked({name: value}) == {name: value}


def test_hidden_values_are_recognized() -> None:
    given = {"A": GITHUB, "API_KEY": "hunter2", "B": "***", "C": "plain"}
    assert secret_signs.still_masked(secret_signs.masked(given)) == ["A", "API_KEY"]


@pytest.mark.parametrize("variables", [None, [], {"A": 1, "API_KEY": ["x"]}])
def test_a_foreign_document_stays_as_it_is(variables: object) -> None:
    document = {"name": "j", "env_vars": variables}
    assert secret_signs.masked_document(document) == document
