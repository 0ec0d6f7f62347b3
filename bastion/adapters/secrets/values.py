"""What every source of secrets demands of a value."""

from __future__ import annotations

from bastion.core import limits
from bastion.core.errors import SecretUnreadable


def checked(value: str, what: str) -> str:
    """Return the value if a variable can have it. Raises SecretUnreadable; `what` names the value's place."""
    if not value:
        raise SecretUnreadable(f"{what} is empty; write the secret's value there")
    if "\0" in value:
        raise SecretUnreadable(f"{what} contains a NUL byte, which a variable cannot have; encode it, as by base64")
    if len(value.encode("utf-8", "surrogateescape")) > limits.SECRET_MAX_BYTES:
        raise too_large(what)
    return value


def without_line_end(text: str) -> str:
    """Remove one line end at the end, which editors and `echo` add to a file."""
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


def too_large(what: str) -> SecretUnreadable:
    most = limits.SECRET_MAX_BYTES // 1024
    return SecretUnreadable(
        f"{what} is larger than {most} KiB, too large for a variable; let the command read it by itself"
    )
