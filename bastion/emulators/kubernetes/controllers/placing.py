"""Where a pod fits: the filters of kube-scheduler that its nodes and pods need, and its words when none fits.

pkg/scheduler/framework/plugins: nodeunschedulable, tainttoleration, nodeaffinity (node selector), noderesources (fit),
interpodaffinity (required terms); the message as FitError in pkg/scheduler/framework/types.go and the plugins
dynamicresources and defaultpreemption write it in recent releases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    is_terminal,
    labels_of,
    name_of,
    namespace_of,
    node_name_of,
)
from bastion.emulators.kubernetes.controllers.quantities import milli, requests_of
from bastion.emulators.kubernetes.controllers.selectors import matches, tolerated

_NO_VICTIMS = "No preemption victims found for incoming pod"
_NOT_HELPFUL = "Preemption is not helpful for scheduling"


class Rejection:
    """Why a pod does not fit on a node; `others_may_go`: it would if other pods went (Unschedulable upstream)."""

    __slots__ = ("others_may_go", "reasons")

    def __init__(self, *reasons: str, others_may_go: bool = False) -> None:
        self.reasons = reasons
        self.others_may_go = others_may_go


class Board:
    """The nodes and what is placed on them, during one pass. Pods that have ended take nothing."""

    def __init__(self, nodes: Iterable[Obj], pods: Iterable[Obj]) -> None:
        self._nodes = sorted(nodes, key=name_of)
        self._labels = {name_of(node): labels_of(node) for node in self._nodes}
        self._whole = {
            name_of(node): {name: milli(amount) for name, amount in (node["status"].get("allocatable") or {}).items()}
            for node in self._nodes
        }
        self._free = {name: dict(resources) for name, resources in self._whole.items()}
        self._placed: list[tuple[Obj, str]] = []
        # Of these, the ones that keep others away; only leaders of exclusive Jobs do.
        self._jealous: list[tuple[Obj, str]] = []
        for pod in pods:
            if node_name_of(pod) and not is_terminal(pod):
                self.place(pod, node_name_of(pod))

    def place(self, pod: Obj, node: str) -> None:
        free = self._free.get(node)
        if free is None:
            return
        for name, amount in requests_of(pod).items():
            free[name] = free.get(name, 0) - amount
        self._placed.append((pod, node))
        if _terms(pod, "podAntiAffinity"):
            self._jealous.append((pod, node))

    def choose(self, pod: Obj) -> str | list[Rejection]:
        """Return a node's name, or why each does not fit.

        Nodes are tried by name, so that the pods of a gang fill one node pool after the other.
        """
        rejections: list[Rejection] = []
        affinities = _Affinities(pod, self._placed, self._jealous, self._labels)
        for node in self._nodes:
            rejection = self._reject(pod, node, affinities)
            if rejection is None:
                return name_of(node)
            rejections.append(rejection)
        return rejections

    def _reject(self, pod: Obj, node: Obj, affinities: _Affinities) -> Rejection | None:
        spec = node.get("spec") or {}
        if spec.get("unschedulable"):
            return Rejection("node(s) were unschedulable")
        tolerations = pod["spec"].get("tolerations") or ()
        for taint in spec.get("taints") or ():
            if taint["effect"] in ("NoSchedule", "NoExecute") and tolerated(taint, tolerations) is None:
                return Rejection("node(s) had untolerated taint(s)")
        labels = self._labels[name_of(node)]
        if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
            return Rejection("node(s) didn't match Pod's node affinity/selector")
        free, whole = self._free[name_of(node)], self._whole[name_of(node)]
        requests = requests_of(pod)
        short = [name for name, amount in requests.items() if amount > free.get(name, 0)]
        if short:
            words = ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short]
            return Rejection(*words, others_may_go=all(requests[name] <= whole.get(name, 0) for name in short))
        return affinities.reject(labels)


def message(rejections: Sequence[Rejection]) -> str:
    """What the scheduler says of a pod that fits nowhere."""
    if not rejections:
        return "no nodes available to schedule pods"
    count = len(rejections)
    words = Counter(word for rejection in rejections for word in rejection.reasons)
    victims = Counter(_NO_VICTIMS if rejection.others_may_go else _NOT_HELPFUL for rejection in rejections)
    return (
        f"0/{count} nodes are available: {_histogram(words)}. no new claims to deallocate, preemption: "
        f"0/{count} nodes are available: {_histogram(victims)}."
    )


def _histogram(words: Counter[str]) -> str:
    return ", ".join(sorted(f"{count} {word}" for word, count in words.items()))


class _Affinities:
    """The required pod affinities and anti-affinities that bear on one pod, counted by topology domain."""

    def __init__(
        self,
        pod: Obj,
        placed: Sequence[tuple[Obj, str]],
        jealous: Sequence[tuple[Obj, str]],
        labels: dict[str, dict[str, str]],
    ) -> None:
        self._own: list[tuple[str, set[str], bool]] = []
        for term in _terms(pod, "podAffinity"):
            domains = {
                labels[node][term["topologyKey"]]
                for other, node in placed
                if term["topologyKey"] in labels[node] and _selects(term, pod, other)
            }
            # The first pod of a group that is to stay together may go anywhere.
            alone = not any(_selects(term, pod, other) for other, _ in placed) and _selects(term, pod, pod)
            self._own.append((term["topologyKey"], domains, alone))
        self._forbidden: set[tuple[str, str]] = set()
        self._refused_by_others: set[tuple[str, str]] = set()
        for term in _terms(pod, "podAntiAffinity"):
            for other, node in placed:
                if term["topologyKey"] in labels[node] and _selects(term, pod, other):
                    self._forbidden.add((term["topologyKey"], labels[node][term["topologyKey"]]))
        for other, node in jealous:
            for term in _terms(other, "podAntiAffinity"):
                if term["topologyKey"] in labels[node] and _selects(term, other, pod):
                    self._refused_by_others.add((term["topologyKey"], labels[node][term["topologyKey"]]))

    def reject(self, labels: dict[str, str]) -> Rejection | None:
        """Why a node with these labels does not fit."""
        for key, domains, alone in self._own:
            if key not in labels or (labels[key] not in domains and not alone):
                return Rejection("node(s) didn't match pod affinity rules")
        here = set(labels.items())
        if here & self._forbidden:
            return Rejection("node(s) didn't match pod anti-affinity rules", others_may_go=True)
        if here & self._refused_by_others:
            return Rejection("node(s) didn't satisfy existing pods anti-affinity rules", others_may_go=True)
        return None


def _terms(pod: Obj, kind: str) -> list[Obj]:
    affinity = (pod["spec"].get("affinity") or {}).get(kind) or {}
    return affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or []


def _selects(term: Obj, owner: Obj, other: Obj) -> bool:
    """Whether a term of `owner` means `other`. Of namespace selectors only the empty one, every namespace, is known."""
    namespaces = term.get("namespaces") or ()
    selector = term.get("namespaceSelector")
    if selector is None and not namespaces:
        namespaces = (namespace_of(owner),)
    if selector != {} and namespace_of(other) not in namespaces:
        return False
    return matches(term.get("labelSelector"), labels_of(other))
