"""A Google identity for pods where no Google metadata server is: their service account's token, exchanged by Google.

The credentials file (https://google.aip.dev/auth/4117) holds no secret: it names the pool's provider that trusts the
cluster's issuer, and the file with the token, which the kubelet renews. It comes from an annotation of the pod itself,
so that there is no object of its own to keep or lose.
"""

from __future__ import annotations

import json
from typing import Any, Final

ANNOTATION: Final = "bastion-google-credentials"
VOLUME: Final = "google-identity"
FOLDER: Final = "/var/run/bastion-google"
VARIABLE: Final = {"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": f"{FOLDER}/credentials.json"}
MOUNT: Final = {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}
_TOKEN_SECONDS = 3600


def credentials(provider: str) -> str:
    """Return the file's content. `provider`: projects/N/locations/global/workloadIdentityPools/POOL/providers/NAME."""
    return json.dumps(
        {
            "type": "external_account",
            "audience": f"//iam.googleapis.com/{provider}",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": "https://sts.googleapis.com/v1/token",
            "credential_source": {"file": f"{FOLDER}/token", "format": {"type": "text"}},
        }
    )


def volume(provider: str) -> dict[str, Any]:
    """Return the volume with the file and the token; the pod needs `ANNOTATION`."""
    token = {
        # The audience that a provider accepts unless it names its own.
        "audience": f"https://iam.googleapis.com/{provider}",
        "expirationSeconds": _TOKEN_SECONDS,
        "path": "token",
    }
    file = {"path": "credentials.json", "fieldRef": {"fieldPath": f"metadata.annotations['{ANNOTATION}']"}}
    return {
        "name": VOLUME,
        "projected": {"sources": [{"serviceAccountToken": token}, {"downwardAPI": {"items": [file]}}]},
    }
