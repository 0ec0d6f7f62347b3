"""What may be in a bundle: patterns, paths, links, and what looks like a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from bastion.core import secret_signs
from bastion.core.bucket import bundles, keys

REPOSITORY = Path(__file__).resolve().parents[4]
# Put together here, so that this file is none of what it looks for.
HEADER = b"-----BEGIN " + b"PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("path", "pattern", "meant"),
    [
        ("data/x.bin", "data", True),
        ("a/data/x.bin", "data", True),
        ("a/database.py", "data", False),
        ("a/b.ckpt", "*.ckpt", True),
        ("runs/old/1/x", "runs/old", True),
        ("a/runs/old/x", "runs/old", False),
        ("runs/older", "runs/old", False),
        ("runs/x/y", "runs/*", True),
        ("data/x", "data/", True),
        ("x/data/y", "./data/", False),
        ("Data/x", "data", False),
    ],
)
def test_a_pattern_means_a_file_or_a_folder_that_it_is_in(path: str, pattern: str, meant: bool) -> None:
    assert bundles.matches(path, ["other", pattern]) is meant


@pytest.mark.parametrize(
    "path",
    [
        *(".env", "a/.env.production", "id_rsa", "keys/server.key", "x.P12", "a/.aws/credentials", ".netrc"),
        *("conf/client_secret_12.apps.json", "application_default_credentials.json", ".kube/config"),
    ],
)
def test_the_name_of_a_secret_speaks(path: str) -> None:
    assert bundles.secret_by_name(path)


@pytest.mark.parametrize(
    "path",
    [".env.example", "id_rsa.pub", "environment.py", "keys.py", "monkey", "config", "aws/credentials.py", "cert.pem"],
)
def test_a_harmless_name_does_not(path: str) -> None:
    assert bundles.secret_by_name(path) == ""


@pytest.mark.parametrize(
    "data",
    [
        HEADER + b"\n" + b"A" * 64 + b"\n",
        HEADER.replace(b"PRIVATE", b"RSA PRIVATE") + b"\r\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES,0\n\n" + b"A" * 64,
        b'{"type": "service_account", "private_key": "' + HEADER + b"\\nMII" + b"B" * 60,
        b"key = " + b"AKIA" + b"ABCDEFGH234567AB",
        b"x=gh" + b"p_" + b"a1" * 18,
        b"'hf" + b"_" + b"Ab" * 17 + b"'",
        b"AI" + b"za" + b"x" * 35,
        b"xo" + b"xb-" + b"1" * 11 + b"-" + b"a" * 24,
        b"sk" + b"-ant-api03-" + b"x" * 95,
    ],
    ids=["pkcs8", "encrypted", "service account", "aws", "github", "hugging face", "google", "slack", "anthropic"],
)
def test_a_secret_is_seen_in_a_file(data: bytes) -> None:
    assert secret_signs.secret_in(b"\x00 some text\n" + data + b"\n more")


@pytest.mark.parametrize(
    "data",
    [HEADER + b'"\n# a program that looks for it\n', b"AKIA" + b"x" * 16, b"hf_transfer", b"ghp_short", b""],
    ids=["header", "aws", "hugging face", "github", "nothing"],
)
def test_what_only_resembles_one_is_not(data: bytes) -> None:
    assert secret_signs.secret_in(data) == ""


def test_nothing_in_this_repository_is_taken_for_a_secret() -> None:
    files = [path for path in REPOSITORY.glob("[a-z]*/**/*.*") if path.is_file()]
    assert len(files) > 100
    names = [str(path.relative_to(REPOSITORY)) for path in files]
    assert [name for name in names if bundles.secret_by_name(name)] == []
    texts = [path for path in files if path.suffix in (".py", ".md", ".sh", ".toml", ".json", ".yaml")]
    assert [path for path in texts if secret_signs.secret_in(path.read_bytes())] == []


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a/..", "a\0b", "x" * 256, "a/" * 600])
def test_a_path_that_leads_away_is_refused(path: str) -> None:
    with pytest.raises(bundles.UnsafePath):
        bundles.check_path(path)


def test_a_path_is_cleaned() -> None:
    assert [bundles.check_path(path) for path in ("./a//b/.", ".", "./", "a..b")] == ["a/b", "", "", "a..b"]


@pytest.mark.parametrize(("path", "target"), [("a", "/etc"), ("a", ".."), ("a/b", "../../c"), ("a", ""), ("a", "x\0")])
def test_a_link_that_leads_out_is_refused(path: str, target: str) -> None:
    with pytest.raises(bundles.UnsafePath):
        bundles.check_link(path, target)


def test_a_link_inside_is_fine() -> None:
    for path, target in (("a", "b"), ("a/b", "../c"), ("a/b", ".."), ("a", "."), ("a", "missing/x")):
        bundles.check_link(path, target)


def test_the_url_of_a_bundle_holds_its_digest() -> None:
    digest = "0123456789abcdef" * 4
    assert bundles.digest_in(f"gs://team/alice-bastion/{keys.bundle(digest)}") == digest
    for url in ("gs://team/code.tar.gz", f"gs://team/{digest}.tar.gz", f"/x/bundles/{digest}.tar.gz?", ""):
        assert bundles.digest_in(url) == ""
