"""`fields.txt` against the official client's models and JobSet's CustomResourceDefinition."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from bastion.emulators.kubernetes.apiserver import resources, schemas
from tests.support.kubernetes_schemas import crd_documents, kueue_documents

_CONTAINER = re.compile(r"(list|dict)[(\[](?:str, ?)?(.+)[)\]]", re.IGNORECASE)
_PLAIN = {"str": "string", "int": "integer", "bool": "boolean", "float": "number", "datetime": "time", "object": "any"}
# Types of the client that Kubernetes' JSON distinguishes further.
_FINER = {"quantity": "string", "bytes": "string"}
_OWN = ("TemplateMeta",)


def _models() -> Mapping[str, Any]:
    client = pytest.importorskip("kubernetes.client")
    found = {}
    for name in dir(client):
        if hasattr(model := getattr(client, name), "openapi_types"):
            found[re.sub(r"^(CoreV1|V1)(?=[A-Z])", "", name)] = model
    # The client has two kinds of these names.
    found["Event"] = client.CoreV1Event
    return found


def _type_of(text: str) -> str:
    """A type of the client as `fields.txt` writes it."""
    if container := _CONTAINER.fullmatch(text):
        inner = _type_of(container[2])
        return f"[{inner}]" if container[1].lower() == "list" else f"{{{inner}}}"
    return _PLAIN.get(text) or re.sub(r"^(CoreV1|V1)(?=[A-Z])", "", text)


def _coarse(text: str) -> str:
    return re.sub(r"quantity|bytes", lambda found: _FINER[found[0]], text)


def test_built_in_types_have_the_fields_of_the_official_client() -> None:
    models = _models()
    compared = 0
    for name, fields in schemas.types().items():
        if name in _OWN or name not in models or name.startswith("JobSet"):
            continue
        model = models[name]
        expected = {model.attribute_map[attribute]: _type_of(kind) for attribute, kind in model.openapi_types.items()}
        assert fields.keys() == expected.keys(), name
        for field, known in fields.items():
            if "any" not in known.type:
                assert _coarse(known.type) == _coarse(expected[field]), f"{name}.{field}"
        compared += 1
    assert compared > 120


def test_sets_have_the_fields_of_their_definition() -> None:
    try:
        (definition,) = crd_documents()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    _compare("JobSet", schema, "")


def test_kueues_kinds_have_the_fields_of_their_definitions() -> None:
    try:
        definitions = kueue_documents()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    for definition in definitions:
        _compare(
            definition["spec"]["names"]["kind"], definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], ""
        )


def _compare(name: str, schema: Mapping[str, Any], path: str) -> None:
    """Compare one type; the definition is of an older Kubernetes, which has fewer fields."""
    fields, properties = schemas.types()[name], schema["properties"]
    assert properties.keys() <= fields.keys(), path
    assert {field for field in properties if fields[field].required} == set(schema.get("required", ())), path
    for field, inner in properties.items():
        known, where = fields[field], f"{path}.{field}"
        assert set(known.values) == set(inner.get("enum", ())), where
        kind = known.type.strip("[]")
        part = inner["items"] if known.type.startswith("[") else inner
        if kind in schemas.types() and part.get("properties"):
            _compare("TemplateMeta" if path and field == "metadata" else kind, part, where)
        elif kind in ("string", "integer", "boolean"):
            assert part["type"] == kind, where


def test_every_kind_and_every_type_that_is_named_is_there() -> None:
    types = schemas.types()
    scalars = {"any", "string", "boolean", "integer", "number", "time", "quantity", "bytes"}
    assert {resource.kind for resource in resources.ALL} <= types.keys()
    for name, fields in types.items():
        for field, known in fields.items():
            assert known.type.strip("[]{}") in types.keys() | scalars, f"{name}.{field}"


def test_unknown_fields_are_dropped_and_wrong_types_named() -> None:
    document = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "imag": "x"}], "nodeName": 3, "x": 1}}
    clean, findings = schemas.checked("Pod", document, custom=False)
    assert clean == {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], "nodeName": 3}}
    assert findings.unknown == ["spec.containers[0].imag", "spec.x"]
    assert [problem.field for problem in findings.wrong] == ["spec.nodeName"]
