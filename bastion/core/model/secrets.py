"""References to secrets: a variable of the command, and where its hosts find the value.

`file:PATH`, `env:NAME`, `sm://PROJECT/SECRET[/VERSION]` and `k8s:secret/NAME/KEY`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

FORMS = "file:PATH, env:NAME, sm://PROJECT/SECRET[/VERSION] or k8s:secret/NAME/KEY"
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,255}"
# An id, an id in the scope of a domain, or a number. Ids, secrets and versions (numbers, `latest` and aliases) as in
# https://cloud.google.com/secret-manager/docs/reference/rest/v1/projects.secrets.
_VERSION = re.compile(
    r"//(?P<project>(?:[a-z0-9.-]{1,63}:)?[a-z][a-z0-9-]{4,61}[a-z0-9]|[0-9]{1,20})/(?P<secret>[A-Za-z0-9_-]{1,255})"
    r"(?:/(?P<version>[0-9]{1,19}|[a-zA-Z][-_a-zA-Z0-9]{0,62}))?"
)
# Names of objects and keys of Kubernetes (pkg/apis/core/validation, ValidateSecret); a key cannot begin with two dots.
_POD_SECRET = re.compile(
    r"secret/(?P<name>[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?)/(?P<key>(?!\.{1,2}\Z|\.\.)[-._a-zA-Z0-9]{1,253})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretVersion:
    """A version of a secret in Google Secret Manager."""

    project: str
    secret: str
    version: str = "latest"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PodSecret:
    """A key of a Secret of Kubernetes, in the namespace of the job's pods."""

    name: str
    key: str


def check_name(name: str) -> str:
    """Return the name of a variable for a secret. Raises ValueError if it cannot be one."""
    if not re.fullmatch(_VARIABLE, name) or name.startswith("BASTION_"):
        raise ValueError("must be the name of a variable, without BASTION_ at its beginning")
    return name


def check_source(text: str) -> str:
    """Return where a host finds a secret. Raises ValueError if it has none of `FORMS`."""
    scheme, _, what = text.partition(":")
    match scheme:
        case "file":
            if not re.fullmatch(r"/[^\x00-\x1f\x7f]{1,1023}", what):
                raise ValueError("must have an absolute path on the host, such as file:/secrets/wandb/api-key")
        case "env":
            if not re.fullmatch(_VARIABLE, what):
                raise ValueError("must have the name of a variable of the host's agent, such as env:WANDB_API_KEY")
        case "sm":
            secret_version(what)
        case "k8s":
            pod_secret(what)
        case _:
            raise ValueError(f"must be {FORMS}; a secret's value itself must not be in a spec")
    return text


def secret_version(where: str) -> SecretVersion:
    """Read what follows `sm:`. Raises ValueError."""
    found = _VERSION.fullmatch(where)
    if found is None:
        raise ValueError(
            "must name a Google Cloud project, a secret and perhaps a version, such as sm://my-project/wandb-key or "
            "sm://my-project/wandb-key/3"
        )
    return SecretVersion(project=found["project"], secret=found["secret"], version=found["version"] or "latest")


def pod_secret(where: str) -> PodSecret:
    """Read what follows `k8s:`. Raises ValueError."""
    found = _POD_SECRET.fullmatch(where)
    if found is None:
        raise ValueError(
            "must name a Secret as kubectl does, and its key, such as k8s:secret/wandb/api-key; the namespace is that "
            "of the job's pods"
        )
    return PodSecret(name=found["name"], key=found["key"])


def pod_secrets(sources: Iterable[str]) -> tuple[PodSecret, ...]:
    """Return the keys of Secrets among checked sources, sorted, each once."""
    found = {pod_secret(what) for scheme, _, what in (source.partition(":") for source in sources) if scheme == "k8s"}
    return tuple(sorted(found))
