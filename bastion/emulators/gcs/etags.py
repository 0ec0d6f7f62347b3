"""ETags in the form of Cloud Storage's: numbered fields as protocol buffers encode them, in base64."""

from __future__ import annotations

import binascii


def of_numbers(*numbers: int) -> str:
    """Return the tag of fields 1, 2, ... with these values."""
    fields = b"".join(_varint(field << 3) + _varint(number) for field, number in enumerate(numbers, start=1))
    return binascii.b2a_base64(fields, newline=False).decode()


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
