"""Values that parsers may not expect, for `mangling`."""

from __future__ import annotations

LONG_CHARS = 64 * 1024
_DEPTH = 3000

# fmt: off

# Where a text stood.
TEXTS = (
    "", " ", "0", "-1", "1e999", "NaN", "null", "true", "\0", "a\0b", "\n", "a\r\nb", "\u2028", "\u202e\u2066",
    "\ufeff", "²", "٣", "é" * 40, "e\u0301", "😀", "\x1b[31m", "../../etc/passwd", "..", ".", "/", "//", "/etc/passwd",
    "a/../b", "a//b", "C:\\x", "~root", "$(id)", "`id`", "';--", "{{x}}", "%00", "%2e%2e%2f", "%zz", "%f0%9f",
    "gs://", "gs://a", "s3://b/c", "file:///etc/passwd", "http://[", "2026-01-02T03:04:05Z", "9999-12-31T23:59:59.9Z",
    "0001-01-01T00:00:00Z", "9999-99-99", "9" * 400, "9" * 5000, "1" + "0" * 30, "0x" + "f" * 2000, "1.5h",
    "tpu-v4-32", "v4", "sha256-00", "x" * 300, "x" * LONG_CHARS, "(a+)+$", "[", "\\", '"', "aaaaaaaaaa-1",
    "aaaaaaaaaa-99999999999999999999", "CANCELLING", "running",
)

# Where a number stood.
NUMBERS: tuple[object, ...] = (
    0, 1, -1, 2, 5, 63, 64, 255, 256, 65536, 2**31, 2**32, 2**53 + 1, 2**60, 2**63, 2**64, -(2**63), 10**18, 10**30,
    10**400, 0.0, -0.0, 0.5, 1e-320, 1e300, 253402300800, 253402300799.9999, -62135596801.0, 4e11, True, False,
)

# Somewhere among bytes.
PIECES = (
    b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n", b"\r\n\r\n", b"  ", b"\t", b'"', b"{",
    b"}", b"[", b"]", b"[" * _DEPTH, b'{"a":' * _DEPTH, b"=", b"a.b.c = 1", b"#", b"'''", b"9" * 5000, b"-", b":",
    b";", b",", b"\\u0000", b"\\ud800", b"1e999", b"NaN", b"-Infinity", b"x" * 1000, b"\x1f\x8b", b"PK\x03\x04",
    b"0x", b"1979-05-27", b"%00", b"&", b"<!DOCTYPE a>",
)

# Among the fields of a head.
HEADER_LINES = (
    b"Content-Length: 5", b"Content-Length: 99999999999999999999", b"Content-Length: " + b"9" * 5000,
    b"Content-Length: \xb2", b"Content-Length: -1", b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked", b"Content-Range: bytes 0-4/5", b"Content-Range: bytes 0-4/*",
    b"Content-Range: bytes */*", b"Content-Range: bytes " + b"9" * 19 + b"-*/*", b"Range: bytes=-1",
    b"Range: bytes=9999999999999999999999-", b"Content-Type: multipart/related; boundary=", b"Content-Encoding: gzip",
    b"Content-Type: multipart/related; boundary=b", b"Content-Type: multipart/mixed; boundary='b'",
    b"X-HTTP-Method-Override: \xff", b"x-goog-hash: crc32c=AAAA,md5=\xff", b"Content-MD5: \xff",
    b"x-goog-generation: \xb2", b"x-goog-generation: " + b"9" * 5000, b"If-Match: \"a\", *", b"Expect: 100-continue",
    b"x-goog-meta-gcsproxy-version: 1", b"x-goog-copy-source: /vault/%ff", b"x-goog-encryption-algorithm: AES256",
    b"Accept-Encoding: gzip;q=0", b"Last-Modified: Thu, 32 Foo 99999 00:00:00 GMT", b"Retry-After: " + b"9" * 400,
    b"Host: vault.storage.googleapis.com", b"Host: [::1", b"Connection: \xff",
)

# In a request line.
REQUEST_TARGETS = (
    b"/storage/v1/b/%ff/o/%00", b"/storage/v1/b/vault/o/..%2f..",
    b"/upload/storage/v1/b/vault/o?uploadType=resumable&name=%ed%a0%80",
    b"/storage/v1/b/lake/o?pageToken=AAAA&maxResults=" + b"9" * 19, b"/storage/v1/b/lake/o?matchGlob={a,{b,**}[!-",
    b"/batch/storage/v1", b"/storage/v1/b/lake/o?fields=items(name,(((", b"/vault/a?uploads", b"/lake?prefix=%f0",
    b"/lake/a?uploadId=x&partNumber=99999", b"http://[::1", b"*", b"//",
    b"/storage/v1/b/lake/o/a/rewriteTo/b/vault/o/b?rewriteToken=gcsproxy-!!!!",
)
# fmt: on
