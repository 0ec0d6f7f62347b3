"""The keys of runs: which of them follow from what, and which bytes they prove."""

from __future__ import annotations

import pytest

from bastion.core.run_keys import RunKey, RunKeys, is_signed

ROOT = RunKeys(b"r" * 32)
KEY = ROOT.of("abcdefghij-1", "token")


def test_a_key_follows_from_root_run_and_token() -> None:
    assert RunKeys(b"r" * 32).of("abcdefghij-1", "token").text == KEY.text
    others = [
        ROOT.of("abcdefghij-2", "token"),
        ROOT.of("abcdefghij-1", "other"),
        RunKeys(b"s" * 32).of("abcdefghij-1", "token"),
    ]
    everything = [KEY, *others]
    for part in ("text", "claim_tag", "public"):
        assert len({getattr(key, part) for key in everything}) == len(everything)
    assert RunKey.from_text(KEY.text).public == KEY.public


def test_the_published_parts_do_not_contain_the_secret() -> None:
    assert KEY.text not in KEY.public + KEY.claim_tag
    assert KEY.text[:16] not in KEY.public + KEY.claim_tag


def test_ed25519_is_that_of_rfc_8032() -> None:
    """Section 7.1, test 1, whose message is empty, cannot be made with a purpose: the key pair can."""
    key = RunKey.from_text("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    assert key.public == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


def test_a_signature_holds_for_its_key_purpose_and_bytes_only() -> None:
    signature = KEY.sign("report", b"data")
    assert is_signed(KEY.public, "report", b"data", signature)
    assert not is_signed(KEY.public, "report", b"data.", signature)
    assert not is_signed(KEY.public, "claim", b"data", signature)
    assert not is_signed(ROOT.of("abcdefghij-2", "token").public, "report", b"data", signature)


@pytest.mark.parametrize("signature", ["", "zz", "00", "0" * 128, "é" * 128])
def test_whatever_is_no_signature_is_none(signature: str) -> None:
    assert not is_signed(KEY.public, "report", b"data", signature)
    assert not is_signed(signature, "report", b"data", KEY.sign("report", b"data"))


@pytest.mark.parametrize("secret", [b"", b"x" * 31, b"x" * 33])
def test_a_secret_has_32_bytes(secret: bytes) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        RunKey(secret)
    with pytest.raises(ValueError, match="32 bytes"):
        RunKeys(secret)
