"""Where agents are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path

AGENT_DIR = "BASTION_AGENT_DIR"


def agents_folder(otherwise: Path) -> Path:
    """Return $BASTION_AGENT_DIR, which emulators and homes share: an agent is packed and unpacked once in it."""
    return Path(os.environ.get(AGENT_DIR) or otherwise)
