"""The proxy's environment: what it means, and that what is malformed is refused with words that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from bastion.core.errors import Refused
from bastion.proxy.settings import KeyMapping, ProxySettings

KEY = "projects/cool-project/locations/global/keyRings/proxy/cryptoKeys/kek"
OTHER = "projects/example.com:team/locations/us-central2/keyRings/r_1/cryptoKeys/k-2"
MAPPING = f"my-bucket:{KEY}"


def settings(**environment: str) -> ProxySettings:
    return ProxySettings.from_environment({"GCP_KMS_BUCKET_KEY_MAPPING": MAPPING, **environment})


def test_with_a_mapping_alone_everything_has_its_default() -> None:
    found = settings(HOME="/root")
    assert found.mapping.key_for("my-bucket", "a") == KEY
    assert found == ProxySettings(
        mapping=found.mapping,
        former_keys=(),
        encrypt=True,
        allow_plaintext=False,
        cert_path=None,
        debug=False,
        listen=("127.0.0.1", 9080),
        kms="gcp",
        keyring=None,
        upstream=None,
    )


def test_the_longest_prefix_wins_whatever_the_order() -> None:
    mapping = KeyMapping.parse(f"b-1/ckpt/:{OTHER}, b-1:{KEY},b-2/x:{KEY}")
    assert mapping.key_for("b-1", "ckpt/1") == OTHER
    assert mapping.key_for("b-1", "ckpt2") == KEY
    assert mapping.key_for("b-2", "x") == KEY
    assert mapping.key_for("b-2", "y/x") is None
    assert mapping.key_for("b-3", "x") is None
    assert [mapping.covers(bucket) for bucket in ("b-1", "b-2", "b-3", "b-")] == [True, True, False, False]
    assert mapping.keys == tuple(sorted((KEY, OTHER)))
    assert mapping.buckets == ("b-1", "b-2")


def test_a_prefix_may_hold_colons_and_even_what_looks_like_a_key() -> None:
    mapping = KeyMapping.parse(f"b-1/a:projects/b:{OTHER}")
    assert mapping.key_for("b-1", "a:projects/b/c") == OTHER
    assert mapping.key_for("b-1", "a") is None


@pytest.mark.parametrize(
    ("mapping", "word"),
    [
        ("", "is not set"),
        ("   ", "is not set"),
        ("my-bucket", "BUCKET"),
        (f":{KEY}", "is not a valid bucket name"),
        (f"gs://my-bucket:{KEY}", "remove gs://"),
        (f"My-Bucket:{KEY}", "is not a valid bucket name"),
        (f"*:{KEY}", "is not a valid bucket name"),
        (f"my-bucket:{KEY},", "BUCKET"),
        (f"my-bucket:{KEY}/cryptoKeyVersions/1", "is not a valid key name"),
        ("my-bucket:projects/p/locations/global/keyRings/r", "is not a valid key name"),
        (f"my-bucket:{KEY},my-bucket:{OTHER}", "twice"),
        (f"my-bucket/a:{KEY},my-bucket/a:{KEY}", "twice"),
        (f"my-bucket:{KEY} my-other:{KEY}", "is not a valid bucket name"),
    ],
    ids=[
        "empty", "blank", "no-key", "no-bucket", "url", "capitals", "star", "comma-at-the-end", "version", "ring",
        "two-keys", "one-twice", "no-comma",
    ],
)  # fmt: skip
def test_a_malformed_mapping_is_refused(mapping: str, word: str) -> None:
    with pytest.raises(Refused, match="GCP_KMS_BUCKET_KEY_MAPPING") as refused:
        settings(GCP_KMS_BUCKET_KEY_MAPPING=mapping)
    assert word in str(refused.value)


@pytest.mark.parametrize(
    ("text", "encrypts"),
    [("true", False), ("1", False), ("YES", False), ("false", True), ("0", True), ("no", True), ("", True)],
)
def test_disabling_encryption_takes_a_plain_word_and_false_encrypts(text: str, encrypts: bool) -> None:
    found = settings(GCS_PROXY_DISABLE_ENCRYPTION=text)
    assert found.encrypt is encrypts
    assert found.allow_plaintext is not encrypts, "who stores plaintext must be able to read it"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("GCS_PROXY_DISABLE_ENCRYPTION", "off"),
        ("GCS_PROXY_DISABLE_ENCRYPTION", "2"),
        ("GCS_PROXY_ALLOW_PLAINTEXT", "maybe"),
        ("DEBUG_LEVEL", "2"),
        ("DEBUG_LEVEL", "info"),
        ("GCS_PROXY_LISTEN", "9080"),
        ("GCS_PROXY_LISTEN", "localhost:"),
        ("GCS_PROXY_LISTEN", ":9080"),
        ("GCS_PROXY_LISTEN", "127.0.0.1:65536"),
        ("GCS_PROXY_USERS", "root"),
        ("GCS_PROXY_USERS", "1000,"),
        ("GCS_PROXY_PROCESSES", "0"),
        ("GCS_PROXY_PROCESSES", "65"),
        ("GCS_PROXY_PROCESSES", "-1"),
        ("GCS_PROXY_PROCESSES", "all"),
        ("GCS_PROXY_KMS", "aws"),
        ("GCS_PROXY_KMS", "local"),
        ("GCS_PROXY_FORMER_KEYS", "kek"),
        ("GCS_PROXY_UPSTREAM", "127.0.0.1:4443"),
        ("GCS_PROXY_UPSTREAM", "ftp://127.0.0.1"),
        ("GCS_PROXY_UPSTREAM", "http://127.0.0.1:port"),
        ("GCS_PROXY_UPSTREAM", "http://127.0.0.1:4443/storage"),
        ("GCS_PROXY_UPSTREAM", "http://me:secret@127.0.0.1:4443"),
    ],
)
def test_what_is_malformed_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(Refused, match=name) as refused:
        settings(**{name: text})
    assert "secret" not in str(refused.value)


def test_a_keyring_makes_the_key_service_local_and_contradicts_the_clouds() -> None:
    found = settings(GCS_PROXY_KEYRING="/etc/keys")
    assert (found.kms, found.keyring) == ("local", Path("/etc/keys"))
    assert settings(GCS_PROXY_KEYRING="/etc/keys", GCS_PROXY_KMS="local") == found
    with pytest.raises(Refused, match="contradict"):
        settings(GCS_PROXY_KEYRING="/etc/keys", GCS_PROXY_KMS="gcp")


def test_the_rest_is_read() -> None:
    found = settings(
        PROXY_CERT_PATH="/certs",
        DEBUG_LEVEL="1",
        GCS_PROXY_LISTEN="[::1]:0",
        GCS_PROXY_UPSTREAM="http://127.0.0.1:4443/",
        GCS_PROXY_FORMER_KEYS=f"{OTHER}, {KEY}",
        GCS_PROXY_ALLOW_PLAINTEXT="yes",
        GCS_PROXY_PROCESSES="3",
        GCS_PROXY_USERS="1000, 65534",
    )
    assert found.cert_path == Path("/certs")
    assert found.debug
    assert found.listen == ("::1", 0)
    assert found.upstream == "http://127.0.0.1:4443"
    assert found.trusted_keys == (KEY, OTHER)
    assert found.allow_plaintext
    assert found.processes == 3
    assert found.users == {1000, 65534}
    assert settings(GCS_PROXY_USERS="any").users is None
    assert found.encrypt
