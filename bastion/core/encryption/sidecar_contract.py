"""What the worker and the encrypting storage proxy tell each other: variables, files, exit codes.

They are two programs, and neither imports the other.
"""

from __future__ import annotations

from typing import Final

from bastion.core.encryption.key_mapping import MAPPING as MAPPING
from bastion.core.errors import EXIT_INFRASTRUCTURE, EXIT_REFUSED

# Variables that both know; the proxy's settings have more. Where it listens and what its folders are, the worker says.
PREFIX: Final = "GCS_PROXY_"
DEBUG: Final = "DEBUG_LEVEL"
CERT_PATH: Final = "PROXY_CERT_PATH"
LISTEN: Final = "GCS_PROXY_LISTEN"
STATE_PATH: Final = "GCS_PROXY_STATE_PATH"
UPSTREAM: Final = "GCS_PROXY_UPSTREAM"

# In the folder `CERT_PATH`: the public certificate, which appears only once the proxy listens (its name is the one that
# other launchers wait for), and the same with all authorities that the host trusts anyway.
CA_FILE: Final = "mitmproxy-ca-cert.pem"
BUNDLE_FILE: Final = "ca-bundle.pem"

PORT: Final = 9080
LOOPBACK: Final = "127.0.0.1"

# With which the proxy ends when it cannot begin: what it was told makes no sense, or the key service does not answer.
EXIT_CONFIGURATION: Final = EXIT_REFUSED
EXIT_OUT_OF_REACH: Final = EXIT_INFRASTRUCTURE
