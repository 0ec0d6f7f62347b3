"""What only daemons and the emulated Cloud TPU need: people who use a bastion elsewhere install Bastion without it."""

from __future__ import annotations

import importlib.util

from bastion.core.errors import Refused


def check_daemon_extra(what: str, *, extra: str = "daemon") -> None:
    """Raise Refused without the packages of the extra `daemon`; `what` needs them, and `extra` brings them."""
    if importlib.util.find_spec("grpc") is None:
        raise Refused(
            f"{what} needs packages that are not installed here; run: pip install 'bastion[{extra}]'. To use a bastion "
            "that runs elsewhere, name it: --root=URL, or bastion config set root URL"
        )
