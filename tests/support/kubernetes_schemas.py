"""Strict checks of manifests: an unknown field, a wrong type or a missing one is a problem.

JobSets and Kueue's objects are checked by the schemas of their CustomResourceDefinitions, which are not part of the
repository: the folder `shared/crds` beside the checkout, or $BASTION_CRDS. Others are checked by the official
client's models. Rules in CEL and what a server validates besides are not checked. Needs the `kubernetes` package, which
brings PyYAML.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_JOB_SET = "jobset-v0.12.0/jobset.x-k8s.io_jobsets.yaml"
_KUEUE = "kueue-v0.19.2/kueue.x-k8s.io_{}.yaml"
_KUEUE_KINDS = (
    "admissionchecks", "clusterqueues", "cohorts", "localqueues", "resourceflavors", "workloadpriorityclasses",
    "workloads",
)  # fmt: skip
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "object": Mapping, "array": list,
}  # fmt: skip
_PLAIN: Mapping[str, type | tuple[type, ...]] = {"str": str, "int": int, "float": (int, float), "bool": bool}
_CONTAINER = re.compile(r"(list|dict)[(\[](?:str, ?)?(.+)[)\]]", re.IGNORECASE)


def crd_folder() -> Path:
    """Raises FileNotFoundError, which says where the folder was looked for."""
    given = os.environ.get("BASTION_CRDS")
    places = [Path(given)] if given else [above / "shared" / "crds" for above in (_ROOT, *_ROOT.parents)]
    for place in places:
        if (place / _JOB_SET).is_file():
            return place
    raise FileNotFoundError(f"no CustomResourceDefinitions: no {_JOB_SET} in {places[0]} (set BASTION_CRDS)")


@cache
def crd_documents() -> tuple[dict[str, Any], ...]:
    """JobSet's CustomResourceDefinition. Raises FileNotFoundError."""
    import yaml

    # The loader in C takes a tenth of the time, where PyYAML was built with it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(yaml.load_all((crd_folder() / _JOB_SET).read_text(), Loader=loader))


def kueue_documents() -> tuple[dict[str, Any], ...]:
    """Kueue's CustomResourceDefinitions that the emulator serves, with v1beta2 only. Raises FileNotFoundError."""
    return tuple(map(_kueue_document, _KUEUE_KINDS))


@cache
def _kueue_document(plural: str) -> dict[str, Any]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    definition: dict[str, Any] = yaml.load((crd_folder() / _KUEUE.format(plural)).read_text(), Loader=loader)
    spec = definition["spec"]
    spec["versions"] = [version for version in spec["versions"] if version["name"] == "v1beta2"]
    # A webhook converts older versions.
    spec.pop("conversion", None)
    definition["metadata"].setdefault("annotations", {})["api-approved.kubernetes.io"] = "unapproved, a test"
    return definition


def job_set_problems(document: object) -> list[str]:
    """What is wrong with a JobSet, each with the path of its field; empty if it fits.

    Raises FileNotFoundError if the CustomResourceDefinition is not there.
    """
    (definition,) = crd_documents()
    (version,) = (found for found in definition["spec"]["versions"] if found["name"] == "v1alpha2")
    problems = list(_by_schema(document, version["schema"]["openAPIV3Schema"], "JobSet"))
    if isinstance(document, Mapping):
        if document.get("apiVersion") != "jobset.x-k8s.io/v1alpha2" or document.get("kind") != "JobSet":
            problems.append("JobSet: not a jobset.x-k8s.io/v1alpha2 JobSet")
        # The schema says of the metadata only that it is an object.
        problems += _by_model(document.get("metadata"), "V1ObjectMeta", "JobSet.metadata")
    return problems


def kueue_problems(document: Mapping[str, Any]) -> list[str]:
    """The same, for an object of Kueue in v1beta2."""
    name = str(document.get("kind"))
    plural = f"{name.lower()}{'es' if name.endswith('s') else 's'}"
    if plural not in _KUEUE_KINDS:
        return [f"Kueue has no kind {name}"]
    definition = _kueue_document(plural)
    (version,) = definition["spec"]["versions"]
    kind = definition["spec"]["names"]["kind"]
    problems = list(_by_schema(document, version["schema"]["openAPIV3Schema"], kind))
    if document.get("apiVersion") != "kueue.x-k8s.io/v1beta2" or document.get("kind") != kind:
        problems.append(f"{kind}: not a kueue.x-k8s.io/v1beta2 {kind}")
    namespaced = "namespace" in document.get("metadata", {})
    if namespaced != (definition["spec"]["scope"] == "Namespaced"):
        problems.append(f"{kind}: its namespace")
    return problems + list(_by_model(document.get("metadata"), "V1ObjectMeta", f"{kind}.metadata"))


def object_problems(document: Mapping[str, Any]) -> list[str]:
    """What is wrong with an object of a built-in kind, by the official client's model; empty if it fits."""
    kind, version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(version, str):
        return ["no kind or no apiVersion"]
    name = _model_name(kind, version)
    if name is None:
        return [f"the official client knows no {kind} of {version}"]
    return list(_by_model(document, name, kind))


def _by_schema(value: object, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    if value is None and schema.get("nullable"):
        return
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, (int, str)) or isinstance(value, bool):
            yield f"{path}: {value!r} is neither an integer nor a string"
        return
    kind = schema.get("type")
    if kind is not None and not _is(value, _TYPES[kind]):
        yield f"{path}: {value!r} is not of type {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {', '.join(map(str, schema['enum']))}"
    if isinstance(value, str):
        yield from _by_text_limits(value, schema, path)
    elif isinstance(value, list):
        yield from _by_limits(len(value), schema, "Items", path)
        for number, item in enumerate(value):
            yield from _by_schema(item, schema.get("items", {}), f"{path}[{number}]")
    elif isinstance(value, Mapping):
        yield from _by_properties(value, schema, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _by_limits(value, schema, "imum", path)


def _by_properties(value: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}: missing"
    for name, item in value.items():
        where = f"{path}.{name}"
        if name in properties:
            yield from _by_schema(item, properties[name], where)
        elif isinstance(others, Mapping):
            yield from _by_schema(item, others, where)
        elif properties and not others and not schema.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{where}: unknown field"


def _by_text_limits(value: str, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    yield from _by_limits(len(value), schema, "Length", path)
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: {value!r} does not match {schema['pattern']}"


def _by_limits(value: float, schema: Mapping[str, Any], what: str, path: str) -> Iterator[str]:
    if value < schema.get(f"min{what}", value) or value > schema.get(f"max{what}", value):
        yield f"{path}: {value} is out of range"


def _by_model(value: object, model: str, path: str) -> Iterator[str]:
    from kubernetes.client import models

    if not isinstance(value, Mapping):
        yield f"{path}: {value!r} is not an object"
        return
    of = getattr(models, model)
    fields = {of.attribute_map[name]: kind for name, kind in of.openapi_types.items()}
    for name in value.keys() - fields.keys():
        yield f"{path}.{name}: unknown field"
    for name, item in value.items():
        if name in fields:
            yield from _by_type(item, fields[name], f"{path}.{name}")
    for name, field in getattr(of, "model_fields", {}).items():
        if field.is_required() and of.attribute_map[name] not in value:
            yield f"{path}.{of.attribute_map[name]}: missing"


def _by_type(value: object, kind: str, path: str) -> Iterator[str]:
    container = _CONTAINER.fullmatch(kind)
    if container:
        items: Sequence[tuple[str, Any]]
        if container[1].lower() == "list":
            if not isinstance(value, list):
                yield f"{path}: {value!r} is not a list"
                return
            items = [(f"{path}[{number}]", item) for number, item in enumerate(value)]
        else:
            if not isinstance(value, Mapping):
                yield f"{path}: {value!r} is not an object"
                return
            items = [(f"{path}.{name}", item) for name, item in value.items()]
        for where, item in items:
            yield from _by_type(item, container[2], where)
    elif kind == "datetime":
        yield from _by_time(value, path)
    elif kind in _PLAIN:
        if not _is(value, _PLAIN[kind]):
            yield f"{path}: {value!r} is not of type {kind}"
    elif kind != "object":
        yield from _by_model(value, kind, path)


def _by_time(value: object, path: str) -> Iterator[str]:
    try:
        datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        yield f"{path}: {value!r} is not a time"


def _is(value: object, kinds: type | tuple[type, ...]) -> bool:
    """Whether a JSON value has this type: true is no number."""
    if isinstance(value, bool):
        return kinds is bool
    return isinstance(value, kinds)


def _model_name(kind: str, version: str) -> str | None:
    """`V1Pod`, `CoreV1Event`: events are in two groups."""
    from kubernetes.client import models

    group, _, number = version.rpartition("/")
    plain = f"{number[0].upper()}{number[1:]}{kind}"
    prefixed = f"{(group or 'core').partition('.')[0].capitalize()}{plain}"
    return next((name for name in (prefixed, plain) if hasattr(models, name)), None)
