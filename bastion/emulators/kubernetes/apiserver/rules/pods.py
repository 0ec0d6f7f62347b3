"""Pods: pkg/registry/core/pod/strategy.go, pkg/apis/core/v1/defaults.go."""

from __future__ import annotations

from bastion.emulators.kubernetes.apiserver.rules.base import Object, WithStatus


class PodRules(WithStatus):
    def initial_status(self, _document: Object) -> Object:
        return {"phase": "Pending", "qosClass": "Burstable"}

    def grace_seconds(self, document: Object, wanted: int | None) -> int:
        """CheckGracefulDelete: none for a pod that no node has, or that has ended."""
        spec = document["spec"]
        seconds = spec.get("terminationGracePeriodSeconds", 30) if wanted is None else wanted
        if not spec.get("nodeName") or document.get("status", {}).get("phase") in ("Failed", "Succeeded"):
            return 0
        return max(int(seconds), 1) if seconds < 0 else int(seconds)
