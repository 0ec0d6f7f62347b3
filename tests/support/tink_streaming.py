"""The oracle of the object format: Tink's own AES-GCM-HKDF streaming with the parameters that the proxy uses."""

from __future__ import annotations

import io

import tink
from tink import secret_key_access, streaming_aead
from tink.proto import aes_gcm_hkdf_streaming_pb2, common_pb2, tink_pb2

from bastion.proxy.sealed.sealing import ASSOCIATED

streaming_aead.register()


class _Kept(io.BytesIO):
    """Tink closes what it writes to; what was written must outlive that."""

    written = b""

    def close(self) -> None:
        if not self.closed:
            self.written = self.getvalue()
        super().close()


def primitive(key: bytes) -> streaming_aead.StreamingAead:
    """Tink's primitive for an object's key."""
    streaming_key = aes_gcm_hkdf_streaming_pb2.AesGcmHkdfStreamingKey(
        key_value=key,
        params=aes_gcm_hkdf_streaming_pb2.AesGcmHkdfStreamingParams(
            ciphertext_segment_size=256 * 1024, derived_key_size=32, hkdf_hash_type=common_pb2.SHA256
        ),
    )
    data = tink_pb2.KeyData(
        type_url="type.googleapis.com/google.crypto.tink.AesGcmHkdfStreamingKey",
        value=streaming_key.SerializeToString(),
        key_material_type=tink_pb2.KeyData.SYMMETRIC,
    )
    only = tink_pb2.Keyset.Key(key_data=data, status=tink_pb2.ENABLED, key_id=1, output_prefix_type=tink_pb2.RAW)
    keyset = tink_pb2.Keyset(primary_key_id=1, key=[only])
    handle = tink.proto_keyset_format.parse(keyset.SerializeToString(), secret_key_access.TOKEN)
    return handle.primitive(streaming_aead.StreamingAead)


def seal(key: bytes, plain: bytes, associated: bytes = ASSOCIATED) -> bytes:
    """The sealed form as Tink makes it, header included."""
    sink = _Kept()
    with primitive(key).new_encrypting_stream(sink, associated) as stream:
        stream.write(plain)
    return sink.written


def open_(key: bytes, sealed: bytes, associated: bytes = ASSOCIATED) -> bytes:
    """The plaintext as Tink reads it.

    Raises:
        tink.TinkError: it refuses.
    """
    with primitive(key).new_decrypting_stream(io.BytesIO(sealed), associated) as stream:
        return stream.read()
