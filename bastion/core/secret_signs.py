"""What looks like a secret: in a file, and in a variable of a job.

Few false alarms rather than complete coverage: users bypass a check that stops them without reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_HIDDEN_FOR_VALUE = "*** (looks like "

# Quick hints, then the pattern around them.
_SECRET_CONTENTS = (
    # Includes the key's first line: a program that only searches for the header is not a key.
    (
        "a private key",
        (b" PRIVATE KEY",),
        rb"-----BEGIN (?:[A-Z]{2,9} )?PRIVATE KEY(?: BLOCK)?-----\s*(?:\\n)?(?:[\w-]+: [^\n]*\s+)*[A-Za-z0-9+/]{60}",
    ),
    ("an AWS access key", (b"AKIA", b"ASIA"), rb"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z2-7]{16}(?![A-Z0-9])"),
    (
        "a GitHub token",
        (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_"),
        rb"(?<!\w)(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{82})(?!\w)",
    ),
    ("a GitLab token", (b"glpat-",), rb"(?<!\w)glpat-[\w-]{20}(?![\w-])"),
    ("a Hugging Face token", (b"hf_",), rb"(?<!\w)hf_[A-Za-z]{34}(?!\w)"),
    ("a Google API key", (b"AIza",), rb"(?<!\w)AIza[\w-]{35}(?![\w-])"),
    ("a Slack token", (b"xox",), rb"(?<!\w)xox[abprs]-[0-9]{10,13}-[\w-]{20,}"),
    ("an OpenAI key", (b"T3BlbkFJ",), rb"(?<!\w)sk-(?:[a-z]+-)?[\w-]{20,74}T3BlbkFJ[\w-]{20}"),
    ("an Anthropic key", (b"sk-ant-",), rb"(?<!\w)sk-ant-[a-z0-9]{5}-[\w-]{80}"),
)

# What a variable may hold, and code often has as an example.
_SECRET_VALUES = (
    ("a JSON web token", re.compile(r"(?<!\w)eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}")),
    ("a URL with a password", re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)),
)
# Not TOKENIZERS_PARALLELISM, MAX_TOKENS and AUTHOR.
_SECRET_NAME = re.compile(
    r"SECRET|TOKEN(?!I[ZS]|S(?:\Z|_))|PASSW(?:OR)?D|CREDENTIAL|PRIVATE|AUTH(?!OR(?!I[ZS]))|API_?KEY|ACCESS_?KEY"
    r"|(?:\A|_)KEY(?:\Z|_)",
    re.IGNORECASE,
)
_PLACE_NAME = re.compile(r"_(?:FILE|PATH|DIR)\Z", re.IGNORECASE)
# Switches, short numbers, and files with an ending.
_HARMLESS_VALUE = re.compile(r"|true|false|yes|no|on|off|none|null|[0-9.]{1,4}|/[\w./-]*\.\w{1,5}", re.IGNORECASE)


def secret_in(data: bytes) -> str:
    """Return the type of secret in a file's bytes; empty: no known one."""
    for secret_type, hints, pattern in _SECRET_CONTENTS:
        if any(hint in data for hint in hints) and re.search(pattern, data):
            return secret_type
    return ""


def secret_variable(name: str, value: str) -> str:
    """Return why a variable looks like a secret, for after "looks like "; empty if it does not."""
    found = secret_in(value.encode("utf-8", "surrogateescape"))
    found = found or next((kind for kind, pattern in _SECRET_VALUES if pattern.search(value)), "")
    if found:
        return found
    named = _SECRET_NAME.search(name) and not _PLACE_NAME.search(name)
    return "a secret by its name" if named and not _HARMLESS_VALUE.fullmatch(value) else ""


def secret_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that look like secrets, sorted, each with why."""
    return {name: why for name, value in sorted(variables.items()) if (why := secret_variable(name, value))}


def masked(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with hidden values where they look like secrets."""
    found = secret_variables(variables)
    return {name: _mask(name, found[name]) if name in found else value for name, value in variables.items()}


def still_masked(variables: Mapping[str, str]) -> list[str]:
    """Return the names of variables with values hidden by `masked`."""
    return sorted(
        name
        for name, value in variables.items()
        if value.startswith(_HIDDEN_FOR_VALUE) or (value == HIDDEN and _SECRET_NAME.search(name))
    )


def masked_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a spec or a result with hidden values, whatever else it is."""
    variables = document.get("env_vars")
    if not isinstance(variables, Mapping):
        return dict(document)
    texts = {name: value for name, value in variables.items() if isinstance(value, str)}
    return {**document, "env_vars": {**variables, **masked(texts)}}


def _mask(name: str, why: str) -> str:
    return HIDDEN if _SECRET_NAME.search(name) else f"{_HIDDEN_FOR_VALUE}{why})"
