"""Which requests count as a web page's."""

from __future__ import annotations

import pytest

from bastion.net import cross_site
from bastion.net.http1 import Headers


def refusal(*fields: tuple[str, str], **settings: str) -> str:
    return cross_site.refusal(Headers(fields).get_all, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "origin", "scheme"),
    [
        ("127.0.0.1:9000", "http://127.0.0.1:9000", "http"),
        ("localhost", "http://localhost:80", "http"),
        ("localhost:443", "https://LOCALHOST", "https"),
        ("[::1]:9000", "http://[::1]:9000", "http"),
    ],
)
def test_the_servers_own_origin_passes_in_every_spelling(host: str, origin: str, scheme: str) -> None:
    assert refusal(("host", host), ("origin", origin), scheme=scheme) == ""


@pytest.mark.parametrize(
    "fields",
    [
        (("Host", "localhost:1"), ("Origin", "https://localhost:1")),
        (("Host", "localhost:1"), ("Origin", "http://localhost:2")),
        (("Host", "localhost:1"), ("Origin", "http://localhost:1"), ("Origin", "https://evil.example")),
        (("Host", "localhost:1"), ("Host", "evil.example:1")),
        (("Host", "localhost:1"), ("Origin", "")),
        (("Host", "localhost@evil.example"),),
        (("Host", ""),),
        (("Host", "2130706433"),),
        (("Host", "127.0.0.1.evil.example"),),
        (("Host", "evilgoogleapis.com"),),
        (("Host", "localhost"), ("Sec-Fetch-Site", "Cross-Site")),
    ],
)
def test_one_foreign_field_is_enough(fields: tuple[tuple[str, str], ...]) -> None:
    assert refusal(*fields, hosts=frozenset({"*.googleapis.com"})) != ""  # type: ignore[arg-type]


def test_programs_send_none_of_it() -> None:
    assert refusal(("Host", "127.0.0.1:9000")) == ""
    assert refusal(("Host", "127.8.7.6:9000"), ("Sec-Fetch-Site", "none")) == ""
    # HTTP/1.0; a browser never leaves the host out.
    assert refusal() == ""
