"""`bastion proxy decrypt FILE`: decrypt an object from its bytes and metadata, with the keys but without a proxy."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import plain, say
from bastion.core.errors import Refused, SealBroken

if TYPE_CHECKING:
    from bastion.proxy.sealed.envelope import Envelope

_DESCRIPTION_MAX_BYTES = 1024 * 1024


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "metadata",
        None,
        "The object's metadata, as printed by gcloud storage objects describe --raw --format=json; - means stdin.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "stored_as",
        None,
        "The original gs://BUCKET/NAME, if the metadata does not contain it or the object was moved since.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "keyring",
        None,
        "The keyring file with the key. Default: $GCS_PROXY_KEYRING, else Cloud KMS.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "output", None, "The file to write; it appears once it is complete. Default: stdout.", flag_values=values
    )


def _run(call: Invocation) -> int:
    file, given = call.operands[0], call.flags
    if not given.metadata:
        raise Refused(
            "--metadata is required; make the file with: gcloud storage objects describe --raw --format=json "
            "gs://BUCKET/NAME"
        )
    if file == "-" and given.metadata == "-":
        raise Refused("only one of FILE and --metadata can be - (stdin)")
    from bastion.adapters.kms.key_service import open_kms
    from bastion.adapters.system_clock import SystemClock
    from bastion.proxy.sealed.envelopes import Envelopes
    from bastion.proxy.sealed.opening import opened
    from bastion.proxy.sealed.sealing import Sealing

    envelope, bucket, name = _described(given.metadata, given.stored_as)
    keyring = given.keyring or os.environ.get("GCS_PROXY_KEYRING")
    envelopes = Envelopes(open_kms(Path(keyring) if keyring else None), clock=SystemClock())
    key = envelopes.open(envelope, bucket, name)
    crc32c = envelopes.crc32c(envelope, key)
    say(f"gs://{plain(bucket)}/{plain(name)}, encrypted with version {envelope.kek_version} of {plain(envelope.kek)}")
    if envelope.content_encoding:
        say(f"the content is {plain(envelope.content_encoding)}, as it was stored")
    with _reading(file) as source:
        pieces = _checked(opened(source, Sealing(key, envelope.header)), crc32c)
        if given.output:
            _write_whole(Path(given.output), pieces, source)
        else:
            for piece in pieces:
                sys.stdout.buffer.write(piece)
    return 0


def _described(metadata: str, stored_as: str | None) -> tuple[Envelope, str, str]:
    from bastion.proxy.sealed.description import parse_url, read_description
    from bastion.proxy.sealed.envelope import Envelope

    called = "stdin" if metadata == "-" else plain(metadata)
    with _reading(metadata) as stream:
        description = read_description(stream.read(_DESCRIPTION_MAX_BYTES), called=called)
    bucket, name = parse_url(stored_as) if stored_as else (description.bucket, description.name)
    if not bucket or not name:
        raise Refused(f"{called} does not name the object's bucket and name; use --stored_as=gs://BUCKET/NAME")
    envelope = Envelope.from_metadata(description.metadata)
    if envelope is None:
        raise Refused(
            f"{called} has no metadata of the proxy: the object is not encrypted, so there is nothing to decrypt"
        )
    return envelope, bucket, name


@contextlib.contextmanager
def _reading(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
    else:
        with Path(file).open("rb") as stream:
            yield stream


def _checked(pieces: Iterable[bytes], expected: int | None) -> Iterator[bytes]:
    """Pass the pieces on, then compare their checksum with the stored one."""
    import google_crc32c

    found = 0
    for piece in pieces:
        found = google_crc32c.extend(found, piece)
        yield piece
    if expected is not None and found != expected:
        raise SealBroken(
            "the plaintext's checksum differs from the stored one; the object was already damaged when it was stored"
        )


def _write_whole(path: Path, pieces: Iterable[bytes], source: BinaryIO) -> None:
    """Write a file that appears under its name once it is complete and checked; mode 0600."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.fstat(source.fileno()), path.stat()):
            raise Refused(f"--output={path} is the file to decrypt; choose another one")
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "wb") as stream:
            for piece in pieces:
                stream.write(piece)
            stream.flush()
            os.fsync(file)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


DECRYPT = Command(
    summary="Decrypts an object without a proxy, given its bytes and its metadata.",
    usage="FILE --metadata=FILE [--stored_as=gs://BUCKET/NAME] [--keyring=FILE] [--output=FILE]",
    details="""FILE holds the object as it is in the bucket, downloaded without the proxy; - means stdin. The key is in
        the keyring, or in Cloud KMS, which requires the permission to decrypt with it.

        Every 256 KiB are checked before they are written, and a truncated object is detected. With --output the file
        appears only once it is complete. On stdout, a failure leaves partial output: check the exit code.

        The format is open: docs/reference/object-format.md has a program that decrypts without Bastion.""",
    examples=(
        "bastion proxy decrypt model.bin --metadata=model.json --output=model.plain",
        "bastion proxy decrypt - --metadata=model.json --keyring=keyring.json",
    ),
    operands=(1, 1),
    takes_target=False,
    define=_define,
    run=_run,
)
