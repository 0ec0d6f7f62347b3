"""The emulator's literal method table against the stubs of the installed Cloud TPU client."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.cloud.tpu_v2.services.tpu.transports import TpuGrpcTransport

from bastion.emulators.tpu.methods import METHODS, UNIMPLEMENTED


class _Recorder(grpc.Channel):
    """Notes which stubs are asked of it."""

    def __init__(self) -> None:
        self.stubs: dict[str, tuple[Any, Any]] = {}

    def unary_unary(self, method, request_serializer=None, response_deserializer=None, _registered_method=False):
        self.stubs[method] = (request_serializer, response_deserializer)
        return lambda *_: None

    def unary_stream(self, *_args, **_kwargs):
        raise AssertionError("the API has no streams")

    stream_unary = stream_stream = subscribe = unsubscribe = unary_stream

    def close(self) -> None:
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        return None


@pytest.fixture(scope="module")
def stubs() -> dict[str, tuple[Any, Any]]:
    recorder = _Recorder()
    transport = TpuGrpcTransport(channel=recorder)
    transport._logged_channel = recorder
    transport._stubs.clear()
    for name, member in vars(TpuGrpcTransport).items():
        if isinstance(member, property) and name not in ("grpc_channel", "operations_client", "kind"):
            getattr(transport, name)
    assert len(recorder.stubs) >= 24
    return recorder.stubs


def _served() -> list[tuple[str, str]]:
    return [(service, name) for service, methods in METHODS.items() for name in methods]


@pytest.mark.parametrize(("service", "name"), _served())
def test_a_served_method_has_the_messages_that_the_client_sends_and_reads(stubs, service: str, name: str) -> None:
    serialize, deserialize = stubs[f"/{service}/{name}"]
    method = METHODS[service][name]
    # Plain protobuf classes share one SerializeToString, so of those requests only the name is left to compare.
    assert serialize == getattr(method.request, "serialize", None) or method.request.__name__ == f"{name}Request"
    if deserialize is not None:  # None: the client ignores the answer
        assert deserialize in (
            getattr(method.response, "deserialize", None),
            getattr(method.response, "FromString", None),
        )


def test_every_method_of_the_client_is_served_or_declared_unimplemented(stubs) -> None:
    ours = {f"/{service}/{name}" for service, name in _served()}
    refused = {f"/{service}/{name}" for service, names in UNIMPLEMENTED.items() for name in names}
    assert not ours & refused
    assert set(stubs) == ours | refused
