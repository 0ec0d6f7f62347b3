"""The contract between the agent and the encrypting storage proxy: variables, files, exit codes."""

from __future__ import annotations

from typing import Final

from bastion.core.encryption.key_mapping import MAPPING as MAPPING
from bastion.core.errors import EXIT_INFRASTRUCTURE, EXIT_REFUSED

# Shared variables; the proxy's settings have more. The agent sets the address and the folders.
PREFIX: Final = "GCS_PROXY_"
DEBUG: Final = "DEBUG_LEVEL"
CERT_PATH: Final = "PROXY_CERT_PATH"
LISTEN: Final = "GCS_PROXY_LISTEN"
STATE_PATH: Final = "GCS_PROXY_STATE_PATH"
USERS: Final = "GCS_PROXY_USERS"
UPSTREAM: Final = "GCS_PROXY_UPSTREAM"

# In the folder `CERT_PATH`: the public certificate, which appears when the proxy listens (other launchers wait for this
# name), and the certificate together with the host's own authorities.
CA_FILE: Final = "mitmproxy-ca-cert.pem"
BUNDLE_FILE: Final = "ca-bundle.pem"

PORT: Final = 9080
LOOPBACK: Final = "127.0.0.1"

# Exit codes of a proxy that cannot start: invalid settings, or no answer from the key service.
EXIT_CONFIGURATION: Final = EXIT_REFUSED
EXIT_OUT_OF_REACH: Final = EXIT_INFRASTRUCTURE
