"""`tools/lock_image.py`: releases need a base image with a digest, and `make lock-image` writes it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests.support.tools import load

REPOSITORY = Path(__file__).resolve().parents[3]
DIGEST = "sha256:" + "1a" * 32


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return load("lock_image")


@pytest.fixture
def dockerfile(tmp_path: Path) -> Path:
    path = tmp_path / "Dockerfile"
    path.write_text("# FROM nothing\nFROM python:3.12-slim\nRUN true\n")
    return path


def test_a_dockerfile_without_a_digest_is_no_release(
    tool: ModuleType, dockerfile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main(["--check"], dockerfile) == 1
    message = capsys.readouterr().err
    assert "base image python:3.12-slim has no digest" in message
    assert "make lock-image DIGEST=sha256:..." in message


def test_a_digest_is_written_and_replaced(tool: ModuleType, dockerfile: Path) -> None:
    for digest in (DIGEST, "sha256:" + "2b" * 32):
        assert tool.main([digest], dockerfile) == 0
        assert dockerfile.read_text() == f"# FROM nothing\nFROM python:3.12-slim@{digest}\nRUN true\n"
        assert tool.main(["--check"], dockerfile) == 0


@pytest.mark.parametrize(
    "digest", ["", "latest", DIGEST[:-1], DIGEST.upper(), DIGEST + "\nRUN evil", "sha512:" + "0" * 128]
)
def test_what_is_no_digest_changes_nothing(
    tool: ModuleType, dockerfile: Path, digest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = dockerfile.read_text()
    assert tool.main([digest] if digest else [], dockerfile) == 1
    assert "is not a digest" in capsys.readouterr().err
    assert dockerfile.read_text() == before


def test_the_dockerfile_of_the_repository_has_one_base_image(tool: ModuleType) -> None:
    text = (REPOSITORY / "Dockerfile").read_text("utf-8")
    assert tool.problem(tool.locked(text, DIGEST)) is None
    assert tool.locked(text, DIGEST).count(DIGEST) == 1
