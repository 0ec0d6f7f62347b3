"""The small kinds: kubernetes pkg/registry/core and pkg/apis/core/{v1/defaults.go,validation}."""

from __future__ import annotations

import base64

from bastion.emulators.kubernetes.apiserver import names
from bastion.emulators.kubernetes.apiserver.rules.base import Object, Rules, WithStatus
from bastion.emulators.kubernetes.apiserver.statuses import Problem, forbidden_field, invalid_value, required

_DATA_MAX_BYTES = 1024 * 1024
# Fields of a node's status that are always there.
_NODE_INFO = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)


class NamespaceRules(WithStatus):
    def name_rule(self, name: str) -> list[str]:
        return names.label(name)

    def default(self, document: Object) -> None:
        """Every namespace has a label with its name (SetDefaults_Namespace)."""
        if name := document["metadata"].get("name"):
            labels = document["metadata"].get("labels") or {}
            document["metadata"]["labels"] = {**labels, "kubernetes.io/metadata.name": name}

    def prepare_create(self, document: Object) -> None:
        super().prepare_create(document)
        document["spec"] = {"finalizers": ["kubernetes"]}

    def initial_status(self, _document: Object) -> Object:
        return {"phase": "Active"}

    def prepare_update(self, document: Object, old: Object) -> None:
        super().prepare_update(document, old)
        document["spec"] = old.get("spec", {})


class NodeRules(WithStatus):
    def default(self, document: Object) -> None:
        document.setdefault("spec", {})

    def prepare_create(self, document: Object) -> None:
        """A new node keeps the status that it is created with."""
        status = document.setdefault("status", {})
        status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
        status["nodeInfo"] = {**dict.fromkeys(_NODE_INFO, ""), **status.get("nodeInfo", {})}


class ServiceRules(WithStatus):
    """Headless services only get what clients see; cluster addresses are not emulated."""

    creates_on_update = True

    def name_rule(self, name: str) -> list[str]:
        return names.label_1035(name)

    def default(self, document: Object) -> None:
        spec = document.setdefault("spec", {})
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        for port in spec.get("ports") or []:
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port.get("port"))
        spec.setdefault("internalTrafficPolicy", "Cluster")

    def prepare_create(self, document: Object) -> None:
        super().prepare_create(document)
        spec = document["spec"]
        spec.setdefault("clusterIP", "None")
        spec["clusterIPs"] = [spec["clusterIP"]]
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")

    def initial_status(self, _document: Object) -> Object:
        return {"loadBalancer": {}}

    def create_problems(self, document: Object) -> list[Problem]:
        spec = document["spec"]
        if not spec.get("ports") and spec.get("clusterIP") != "None":
            return [required("spec.ports")]
        return []


class ClaimRules(WithStatus):
    def initial_status(self, _document: Object) -> Object:
        return {"phase": "Pending"}

    def default(self, document: Object) -> None:
        document.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")

    def create_problems(self, document: Object) -> list[Problem]:
        spec, found = document["spec"], []
        if not spec.get("accessModes"):
            found.append(required("spec.accessModes", "at least 1 access mode is required"))
        if "storage" not in ((spec.get("resources") or {}).get("requests") or {}):
            found.append(required("spec.resources[storage]"))
        return found


class SecretRules(Rules):
    def default(self, document: Object) -> None:
        document["type"] = document.get("type") or "Opaque"
        if texts := document.pop("stringData", None):
            encoded = {key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()}
            document["data"] = {**(document.get("data") or {}), **encoded}

    def create_problems(self, document: Object) -> list[Problem]:
        return _data_problems(document, "data")

    def update_problems(self, document: Object, old: Object) -> list[Problem]:
        found = self.create_problems(document)
        if document["type"] != old.get("type"):
            found.append(invalid_value("type", document["type"], "field is immutable"))
        return found + _immutable_problems(document, old)


class ConfigMapRules(Rules):
    def create_problems(self, document: Object) -> list[Problem]:
        found = _data_problems(document, "data", is_text=True) + _data_problems(document, "binaryData")
        for key in document.get("binaryData") or {}:
            if key in (document.get("data") or {}):
                found.append(invalid_value(f"data[{key}]", key, "duplicate of key present in binaryData"))
        return found

    def update_problems(self, document: Object, old: Object) -> list[Problem]:
        return self.create_problems(document) + _immutable_problems(document, old)


def _data_problems(document: Object, field: str, *, is_text: bool = False) -> list[Problem]:
    """`is_text`: whether values stand for themselves, and not for what they are the base64 of."""
    data = document.get(field) or {}
    text = (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',"
        "  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
    )
    valid = "-._abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    found = [invalid_value(f"{field}[{key}]", key, text) for key in data if not key or key.strip(valid)]
    sizes = (len(str(value).encode()) if is_text else len(str(value)) * 3 // 4 for value in data.values())
    if sum(sizes) > _DATA_MAX_BYTES:
        found.append(Problem("TooLong", "", f"may not be more than {_DATA_MAX_BYTES} bytes"))
    return found


def _immutable_problems(document: Object, old: Object) -> list[Problem]:
    if not old.get("immutable"):
        return []
    changed = [field for field in ("data", "binaryData") if document.get(field) != old.get(field)]
    if not document.get("immutable"):
        changed.insert(0, "immutable")
    return [forbidden_field(field, "field is immutable when `immutable` is set") for field in changed]


class LeaseRules(Rules):
    """pkg/apis/coordination/validation."""

    unconditional_update = False
    creates_on_update = True

    def create_problems(self, document: Object) -> list[Problem]:
        spec = document.get("spec") or {}
        found = []
        if (seconds := spec.get("leaseDurationSeconds")) is not None and seconds <= 0:
            found.append(invalid_value("spec.leaseDurationSeconds", seconds, "must be greater than 0"))
        if (count := spec.get("leaseTransitions")) is not None and count < 0:
            found.append(invalid_value("spec.leaseTransitions", count, "must be greater than or equal to 0"))
        if spec.get("holderIdentity") == "":
            found.append(invalid_value("spec.holderIdentity", "", "must not be empty"))
        return found

    def update_problems(self, document: Object, _old: Object) -> list[Problem]:
        return self.create_problems(document)


class EventRules(Rules):
    """pkg/apis/core/validation/events.go, for events of core/v1 without the fields of events.k8s.io."""

    creates_on_update = True

    def default(self, document: Object) -> None:
        document.setdefault("source", {})
        for field in ("reportingComponent", "reportingInstance"):
            document.setdefault(field, "")

    def create_problems(self, document: Object) -> list[Problem]:
        involved = (document.get("involvedObject") or {}).get("namespace") or ""
        namespace = document["metadata"].get("namespace")
        if involved and involved != namespace:
            return [invalid_value("involvedObject.namespace", involved, "does not match event.namespace")]
        if not involved and namespace not in ("default", ""):
            return [invalid_value("involvedObject.namespace", involved, "does not match event.namespace")]
        return []
