"""The environment with which storage clients use the encrypting proxy and trust it.

The agent sets it for a command, `bastion proxy run` prints it for a shell, `bastion proxy doctor` checks it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

# Variables for the file of trusted authorities, with the clients that read them.
BUNDLES: Final[Mapping[str, str]] = {
    "REQUESTS_CA_BUNDLE": "google-cloud-storage",
    "SSL_CERT_FILE": "gcsfs and most others",
    "CURL_CA_BUNDLE": "TensorFlow",
    "TENSORSTORE_CA_BUNDLE": "tensorstore",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": "gcloud",
    "HTTPLIB2_CA_CERTS": "httplib2",
}
# Optional in a shell; a job's program may still start the tool.
BUNDLES_OF_TOOLS: Final = ("CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", "HTTPLIB2_CA_CERTS")
METADATA_HOSTS: Final = ("metadata.google.internal", "169.254.169.254")
# Any of them sends clients to another endpoint, around the proxy.
EMULATOR: Final = "STORAGE_EMULATOR_HOST"
ELSEWHERE: Final = (
    EMULATOR,
    "TENSORSTORE_GCS_HTTP_URL",
    "API_ENDPOINT_OVERRIDE",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE",
)
# Makes gcsfs use a proxy; fsspec reads it as arguments of `gs://` file systems.
FSSPEC: Final = "FSSPEC_GS"
# Otherwise gcsfs asks over gRPC for the bucket's type, gets no answer through an HTTP proxy, and waits for 90 s.
GCSFS_GRPC: Final = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"
# TensorFlow's retries: the proxy on the same host retries already.
_RETRIES: Final = "GCS_RETRY_CONFIG_MAX_RETRIES"

_HOSTS = ("storage.googleapis.com", "www.googleapis.com")
_OTHER_HOST = re.compile(
    r"(?:(?:.*[.-])?(?:commondata|firebase)?storage(?:[.-].*)?|(?:www|content|private|restricted)(?:\.mtls)?)"
    r"\.googleapis\.com"
)


def defaults(given: Mapping[str, str]) -> dict[str, str]:
    """Return variables besides the proxy's address and its bundle; values in `given`, the client's environment, win."""
    return {
        _RETRIES: given.get(_RETRIES, "0"),
        FSSPEC: _trusting_environment(given.get(FSSPEC, "")),
        GCSFS_GRPC: given.get(GCSFS_GRPC, "false"),
    }


def uses_proxy(fsspec: str) -> bool:
    """Whether gcsfs uses `https_proxy` with that value of `FSSPEC_GS`."""
    settings = _settings(fsspec)
    return settings is not None and settings.get("session_kwargs", {}).get("trust_env") is True


def is_storage_exempt(part: str) -> bool:
    """Whether an entry of `no_proxy` covers a storage host, by the widest reading of any client."""
    if part.count(":") > 1:
        return False  # an address
    name = part.lower().partition(":")[0].lstrip("*.").rstrip(".")
    if any(host.endswith(name) or name.endswith(f".{host}") for host in _HOSTS):
        return True
    return _OTHER_HOST.fullmatch(name) is not None


def split_exemptions(value: str) -> list[str]:
    return [part for part in re.split(r"[,\s]+", value) if part]


def _trusting_environment(given: str) -> str:
    """Return the settings of fsspec plus the one that makes gcsfs use `https_proxy`."""
    settings = _settings(given)
    if settings is None:
        return given  # fsspec reports the error
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
