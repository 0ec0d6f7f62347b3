"""Open the requested key service; a keyring needs neither the extra `kms` nor a cloud."""

from __future__ import annotations

from pathlib import Path

from bastion.adapters.kms.keyring import KeyringKms
from bastion.core.errors import Refused
from bastion.ports import Kms


def open_kms(keyring: Path | None) -> Kms:
    """Open the keyring in that file, or Cloud KMS with this user's credentials.

    Raises Refused if the client of Cloud KMS is not installed; KmsRefused without credentials for it.
    """
    if keyring is not None:
        return KeyringKms(keyring)
    try:
        from bastion.adapters.kms import cloud
    except ImportError as error:
        raise Refused(
            f"the keys are in Cloud KMS, but its client is not installed ({error}); run: pip install 'bastion[kms]'. "
            "If they are in a file, set GCS_PROXY_KEYRING"
        ) from error
    return cloud.connect()
