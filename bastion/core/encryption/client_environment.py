"""What storage clients read from their environment, so that they speak with the encrypting proxy and trust it.

The worker sets these variables for a command, `bastion proxy run` prints them for a shell, and
`bastion proxy doctor` checks them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

# The file of trusted authorities, by the variable that each client reads.
BUNDLES: Final[Mapping[str, str]] = {
    "REQUESTS_CA_BUNDLE": "google-cloud-storage",
    "SSL_CERT_FILE": "gcsfs and most others",
    "CURL_CA_BUNDLE": "TensorFlow",
    "TENSORSTORE_CA_BUNDLE": "tensorstore",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": "gcloud",
    "HTTPLIB2_CA_CERTS": "httplib2",
}
# Of these, what a shell need not have; a job's program may start the tool all the same.
BUNDLES_OF_TOOLS: Final = ("CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "HTTPLIB2_CA_CERTS")
METADATA_HOSTS: Final = ("metadata.google.internal", "169.254.169.254")
# With one of them, clients speak with that endpoint, not with the storage hosts that the proxy stands for.
EMULATOR: Final = "STORAGE_EMULATOR_HOST"
ELSEWHERE: Final = (
    EMULATOR,
    "TENSORSTORE_GCS_HTTP_URL",
    "API_ENDPOINT_OVERRIDE",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE",
)
# gcsfs takes notice of a proxy only if it is told to; fsspec reads this as what `gs://` file systems are made with.
FSSPEC: Final = "FSSPEC_GS"
# gcsfs asks over gRPC which kind of bucket it has before it; no HTTP proxy answers that, and it waits for 90 s.
GCSFS_GRPC: Final = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"
# TensorFlow's: behind a proxy on the same host, what fails once fails for good, and others do the repeating.
_RETRIES: Final = "GCS_RETRY_CONFIG_MAX_RETRIES"

_HOSTS = ("storage.googleapis.com", "www.googleapis.com")
_OTHER_HOST = re.compile(
    r"(?:(?:.*[.-])?(?:commondata|firebase)?storage(?:[.-].*)?|(?:www|content|private|restricted)(?:\.mtls)?)"
    r"\.googleapis\.com"
)


def defaults(given: Mapping[str, str]) -> dict[str, str]:
    """Variables that a client gets besides the proxy's address and its bundle; what is given stays.

    Args:
        given: The client's environment without them.
    """
    return {
        _RETRIES: given.get(_RETRIES, "0"),
        FSSPEC: _trusting_environment(given.get(FSSPEC, "")),
        GCSFS_GRPC: given.get(GCSFS_GRPC, "false"),
    }


def heeds_proxy(fsspec: str) -> bool:
    """Whether gcsfs heeds `https_proxy` with that value of `FSSPEC_GS`."""
    settings = _settings(fsspec)
    return settings is not None and settings.get("session_kwargs", {}).get("trust_env") is True


def is_storage_exempt(part: str) -> bool:
    """Whether an entry of `no_proxy` takes in a storage host, by the widest reading of any client."""
    if part.count(":") > 1:
        return False  # an address
    name = part.lower().partition(":")[0].lstrip("*.").rstrip(".")
    if any(host.endswith(name) or name.endswith(f".{host}") for host in _HOSTS):
        return True
    return _OTHER_HOST.fullmatch(name) is not None


def split_exemptions(value: str) -> list[str]:
    """The entries of `no_proxy`."""
    return [part for part in re.split(r"[,\s]+", value) if part]


def _trusting_environment(given: str) -> str:
    """Settings of fsspec in which gcsfs heeds `https_proxy`, whatever else is set there."""
    settings = _settings(given)
    if settings is None:
        return given  # fsspec says what is wrong with it
    session = {**settings.get("session_kwargs", {}), "trust_env": True}
    return json.dumps({**settings, "session_kwargs": session})


def _settings(given: str) -> dict[str, Any] | None:
    try:
        settings = json.loads(given or "{}")
    except (ValueError, RecursionError):
        return None
    if not isinstance(settings, dict) or not isinstance(settings.get("session_kwargs", {}), dict):
        return None
    return settings
