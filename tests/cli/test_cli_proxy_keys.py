"""`bastion proxy keyring` and `bastion proxy decrypt`: keys in a file, and the way out with nothing but them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from bastion.adapters.kms import keyring
from bastion.adapters.kms.keyring import KeyringKms
from bastion.cli.main import main
from bastion.core.errors import EXIT_REFUSED
from bastion.proxy.sealed import segments
from bastion.proxy.sealed.envelope import Envelope
from bastion.proxy.sealed.envelopes import Envelopes
from bastion.proxy.sealed.sealing import Sealing
from bastion.testing.manual_clock import ManualClock
from tests.cli.conftest import Terminal
from tests.support import sealed_objects

KEK = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
PLAIN = os.urandom(600_000)


@dataclass
class Stored:
    """An object fetched past the proxy: `object.bin`, its description `object.json`, the key in `keyring.json`."""

    folder: Path
    plain: bytes = PLAIN
    change: Callable[[Envelope], Envelope] = field(default=lambda envelope: envelope)

    def __post_init__(self) -> None:
        self.ring, self.file, self.metadata = (
            self.folder / name for name in ("keyring.json", "object.bin", "object.json")
        )
        self.output = self.folder / "plain.bin"
        keyring.create(self.ring, KEK)
        envelopes = Envelopes(KeyringKms(self.ring), clock=ManualClock())
        made, key = envelopes.new(KEK, "lake", "ckpt/1")
        self.file.write_bytes(sealed_objects.seal(Sealing(key, made.header), self.plain))
        made = envelopes.with_sums(made, key, google_crc32c.value(self.plain))
        self.envelope = self.change(made)
        self.describe()

    def describe(self, **fields: Any) -> None:
        document = {"bucket": "lake", "name": "ckpt/1", "metadata": self.envelope.to_metadata(), **fields}
        self.metadata.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))

    @property
    def command(self) -> list[str]:
        return ["proxy", "decrypt", str(self.file), f"--metadata={self.metadata}", f"--keyring={self.ring}"]

    @property
    def to_file(self) -> list[str]:
        return [*self.command, f"--output={self.output}"]


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


def nothing_is_left(stored: Stored) -> bool:
    return sorted(entry.name for entry in stored.folder.iterdir()) == ["keyring.json", "object.bin", "object.json"]


def test_keyring_makes_rotates_and_names_versions(run: Terminal, tmp_path: Path) -> None:
    made = run("proxy", "keyring", "create", "keys.json", f"--key={KEK}")
    assert (made.code, made.out) == (0, f"{KEK}/cryptoKeyVersions/1\n")
    assert run("proxy", "keyring", "rotate", "keys.json", f"--key={KEK}").out == f"{KEK}/cryptoKeyVersions/2\n"
    assert KeyringKms(tmp_path / "keys.json").primary(KEK) == "2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["create", "keys.json"], "--key is required"),
        (["make", "keys.json", f"--key={KEK}"], "no action make"),
        (["creat", "keys.json", f"--key={KEK}"], "did you mean create"),
        (["create", "keys.json", "--key=kek"], "is not a valid key name"),
        (["create"], "missing"),
    ],
    ids=["no-key", "no-action", "misspelt", "bad-key", "no-file"],
)
def test_keyring_refuses_with_words_that_help(run: Terminal, words: list[str], message: str) -> None:
    done = run("proxy", "keyring", *words)
    assert done.code == EXIT_REFUSED
    assert message in done.err


def test_a_key_that_exists_is_not_made_again(run: Terminal, stored: Stored) -> None:
    before = stored.ring.read_bytes()
    assert run("proxy", "keyring", "create", str(stored.ring), f"--key={KEK}").code == EXIT_REFUSED
    assert stored.ring.read_bytes() == before


@pytest.mark.parametrize("size", [0, 1, segments.plain_capacity(0), 600_000])
def test_decrypt_writes_the_plaintext_for_its_owner_alone(run: Terminal, tmp_path: Path, size: int) -> None:
    stored = Stored(tmp_path, plain=PLAIN[:size])
    done = run(*stored.to_file)
    assert (done.code, done.out) == (0, "")
    assert f"gs://lake/ckpt/1, encrypted with version 1 of {KEK}" in done.err
    assert stored.output.read_bytes() == stored.plain
    assert stored.output.stat().st_mode & 0o777 == 0o600


def test_decrypt_writes_to_stdout_and_reads_stdin(
    stored: Stored, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(stored.command) == 0
    assert capsysbinary.readouterr().out == stored.plain
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stored.file.read_bytes())))
    assert main(["proxy", "decrypt", "-", *stored.command[3:]]) == 0
    assert capsysbinary.readouterr().out == stored.plain


def test_the_keyring_of_the_environment_is_used(run: Terminal, stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCS_PROXY_KEYRING", str(stored.ring))
    assert run(*[word for word in stored.to_file if "--keyring" not in word]).code == 0
    assert stored.output.read_bytes() == stored.plain


@pytest.mark.parametrize("form", ["gcloud", "list"])
def test_other_tools_forms_of_a_description_are_understood(run: Terminal, stored: Stored, form: str) -> None:
    if form == "gcloud":
        stored.describe(metadata=None, custom_fields=stored.envelope.to_metadata())
    else:
        stored.metadata.write_text(f"[{stored.metadata.read_text()}]")
    assert run(*stored.to_file).code == 0


def test_an_object_that_was_moved_past_the_proxy_opens_under_its_former_name(run: Terminal, stored: Stored) -> None:
    stored.describe(bucket="attic", name="old/1")
    done = run(*stored.to_file, code=1)
    assert "another object" in done.err
    assert nothing_is_left(stored)
    assert run(*stored.to_file, "--stored_as=gs://lake/ckpt/1").code == 0


@pytest.mark.parametrize(
    "broken",
    [
        lambda sealed: sealed[:-1],
        lambda sealed: sealed[: 2 * segments.SEGMENT_BYTES],
        lambda sealed: sealed[:39],
        lambda sealed: b"",
        lambda sealed: sealed[:-1] + bytes([sealed[-1] ^ 1]),
        lambda sealed: sealed + b"\0",
        lambda sealed: bytes(40) + sealed[40:],
    ],
    ids=["byte-cut", "segment-cut", "header-cut", "empty", "flipped", "added", "other-header"],
)
@pytest.mark.parametrize("present", [None, b"what was there before"], ids=["new", "over"])
def test_what_is_not_whole_leaves_no_file(
    run: Terminal, stored: Stored, broken: Callable[[bytes], bytes], present: bytes | None
) -> None:
    if present is not None:
        stored.output.write_bytes(present)
    stored.file.write_bytes(broken(stored.file.read_bytes()))
    done = run(*stored.to_file, code=1)
    assert done.err.startswith("bastion: ") or "\nbastion: " in done.err
    if present is None:
        assert nothing_is_left(stored)
    else:
        assert stored.output.read_bytes() == present


def test_a_checksum_that_does_not_match_leaves_no_file(run: Terminal, tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    envelopes = Envelopes(KeyringKms(stored.ring), clock=ManualClock())
    key = envelopes.open(stored.envelope, "lake", "ckpt/1")
    stored.envelope = envelopes.with_sums(stored.envelope, key, 1)
    stored.describe()
    done = run(*stored.to_file, code=1)
    assert "checksum" in done.err
    assert nothing_is_left(stored)


def test_an_object_without_sums_is_decrypted(run: Terminal, tmp_path: Path) -> None:
    stored = Stored(tmp_path, change=lambda envelope: replace(envelope, sums=b"", content_encoding="gzip"))
    done = run(*stored.to_file, code=0)
    assert "the content is gzip" in done.err


def test_the_ciphertext_is_never_replaced_by_its_plaintext(run: Terminal, stored: Stored) -> None:
    before = stored.file.read_bytes()
    done = run(*stored.command, f"--output={stored.file}")
    assert done.code == EXIT_REFUSED
    assert stored.file.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no JSON", "not JSON"),
        ("[]", "one object"),
        ('{"bucket": "lake", "name": "a", "metadata": {"owner": 3}}', "invalid custom metadata"),
        ('{"bucket": "lake", "name": "a", "metadata": {"owner": "x"}}', "nothing to decrypt"),
        ('{"metadata": {"gcsproxy-version": "1"}}', "--stored_as"),
    ],
    ids=["text", "none", "numbers", "plaintext", "nameless"],
)
def test_a_description_that_will_not_do_is_refused(run: Terminal, stored: Stored, content: str, message: str) -> None:
    stored.metadata.write_text(content)
    done = run(*stored.to_file)
    assert done.code == EXIT_REFUSED
    assert message in done.err
    assert nothing_is_left(stored)


def test_another_keyrings_key_of_that_name_is_refused(run: Terminal, stored: Stored) -> None:
    stored.ring.unlink()
    keyring.create(stored.ring, KEK)
    done = run(*stored.to_file)
    assert done.code == EXIT_REFUSED
    assert "did not wrap this" in done.err
    assert nothing_is_left(stored)


def test_memory_stays_flat_whatever_the_size(tmp_path: Path) -> None:
    stored = Stored(tmp_path, plain=bytes(128 * 1024 * 1024))
    limited = (
        "import resource, sys; from bastion.cli.main import main; import bastion.proxy.sealed.opening, google_crc32c\n"
        "import bastion.adapters.kms.keyring, bastion.proxy.sealed.envelopes\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "code = main(sys.argv[1:])\n"
        "print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, *stored.to_file], capture_output=True, text=True, check=True, timeout=60
    )
    code, grown_kib = map(int, done.stdout.split())
    assert code == 0
    assert grown_kib < 32 * 1024
    assert stored.output.stat().st_size == len(stored.plain)


def test_help_loads_no_cryptography_and_no_google() -> None:
    code = (
        "import sys; from bastion.cli.main import main\n"
        "main(['--help']); main(['proxy', '--help']); main(['proxy', 'decrypt', '--help'])\n"
        "main(['proxy', 'keyring', '--help'])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert {"cryptography", "google_crc32c", "google", "grpc", "pydantic"} & set(done.stderr.split()) == set()
