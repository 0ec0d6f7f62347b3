"""Requests and answers from bytes."""

from __future__ import annotations

import io

import urllib3

from bastion.net.http1 import BadRequest, BytesBody, Request
from bastion.net.http1.head import AnswerHead, body_length, end_of_head, parse_answer, parse_head, split_target
from tests.support.proxy_stage import HOST


def request(data: bytes) -> Request:
    """The request in a head and its body; raises BadRequest as the server would."""
    end = end_of_head(data, 0)
    end = len(data) if end < 0 else end
    head = parse_head(data[:end])
    path, query, authority = split_target(head.target, head.headers.get("host") or HOST)
    length = body_length(head.headers)
    body = data[end:]
    return Request(
        method=head.method,
        target=head.target,
        path=path,
        query=query,
        headers=head.headers,
        body=BytesBody(body if length is None else body[:length]),
        authority=authority,
        secure=True,
    )


def answer_head(data: bytes) -> tuple[AnswerHead, bytes]:
    """The head of an answer and the rest; bytes without a valid head are the body of a 200."""
    end = end_of_head(data, 0)
    if end >= 0:
        try:
            head = parse_answer(data[:end])
            if head.status >= 200:
                return head, data[end:]
        except BadRequest:
            pass
    return parse_answer(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"), data


def answered(data: bytes) -> urllib3.HTTPResponse:
    head, body = answer_head(data)
    headers = [(name, value) for name, value in head.headers.items() if name.lower() != "transfer-encoding"]
    return urllib3.HTTPResponse(
        body=io.BytesIO(body), headers=headers, status=head.status, preload_content=False, decode_content=False
    )
