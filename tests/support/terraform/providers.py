"""Stand-ins for Terraform providers: they answer with a schema, and accept every value.

`terraform validate` and `terraform test` (with mock_provider) ask providers for their schema and for checks of values;
so Terraform itself checks arguments, types, references, preconditions and outputs, without a network. Protocol 5:
docs/plugin-protocol/tfplugin5.4.proto of hashicorp/terraform. Terraform connects to the sockets that it finds in
TF_REATTACH_PROVIDERS, without TLS or a download.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc

from tests.support.terraform.schema import Attribute, Block, Kind, Schema

# Numbers of the protocol: enum Schema.NestedBlock.NestingMode.
_SINGLE, _LIST, _SET = 1, 2, 3
_ELEMENTS = {"s": "string", "n": "number", "b": "bool"}
_SHAPES = {"l": "list", "e": "set", "m": "map"}


@contextmanager
def serving(schemas: list[Schema], folder: Path) -> Iterator[dict[str, str]]:
    """Serve each schema at a socket in the folder. The value is the environment for Terraform."""
    servers, reattach = [], {}
    try:
        for schema in schemas:
            path = folder / f"{schema.provider}.sock"
            server = grpc.server(ThreadPoolExecutor(max_workers=8))
            server.add_generic_rpc_handlers((_Provider(schema),))
            server.add_insecure_port(f"unix:{path}")
            server.start()
            servers.append(server)
            reattach[f"hashicorp/{schema.provider}"] = {
                "Protocol": "grpc",
                "ProtocolVersion": 5,
                "Pid": os.getpid(),
                "Test": True,
                "Addr": {"Network": "unix", "String": str(path)},
            }
        yield {"TF_REATTACH_PROVIDERS": json.dumps(reattach), "CHECKPOINT_DISABLE": "1"}
    finally:
        for server in servers:
            server.stop(None).wait()


class _Provider(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, schema: Schema) -> None:
        self._schema = _schema_response(schema)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        match details.method.rpartition("/")[2]:
            case "GetSchema":
                return grpc.unary_unary_rpc_method_handler(lambda request, context: self._schema)
            case "PrepareProviderConfig":
                # The request's field 1 is the response's: the configuration as it is.
                return grpc.unary_unary_rpc_method_handler(lambda request, context: request)
            case "ValidateResourceTypeConfig" | "ValidateDataSourceConfig" | "Configure":
                return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
        return None


def _schema_response(schema: Schema) -> bytes:
    out = b""
    for path, block in schema.blocks.items():
        kind, _, name = path.partition(".")
        body = _bytes(2, _block(block))
        if kind == "provider":
            out += _bytes(1, body)
        else:
            out += _bytes(2 if kind == "resource" else 3, _bytes(1, name.encode()) + _bytes(2, body))
    return out


def _block(block: Block) -> bytes:
    out = b"".join(_bytes(2, _attribute(name, attribute)) for name, attribute in block.attributes.items())
    for name, inner in block.blocks.items():
        mode = {Kind.SINGLE: _SINGLE, Kind.SET: _SET}.get(inner.kind, _LIST)
        nested = _bytes(1, name.encode()) + _bytes(2, _block(inner)) + _number(3, mode)
        if inner.kind is not Kind.SINGLE:
            nested += _number(4, int(inner.required)) + _number(5, int(inner.kind is Kind.ONE))
        out += _bytes(3, nested)
    return out


def _attribute(name: str, attribute: Attribute) -> bytes:
    type_: object = "dynamic"
    if attribute.type in _ELEMENTS:
        type_ = _ELEMENTS[attribute.type]
    elif attribute.type != "any":
        type_ = [_SHAPES[attribute.type[0]], _ELEMENTS[attribute.type[1]]]
    out = _bytes(1, name.encode()) + _bytes(2, json.dumps(type_).encode())
    return out + _number(4, attribute.required) + _number(5, attribute.optional) + _number(6, attribute.computed)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(int(value)) if value else b""


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])
