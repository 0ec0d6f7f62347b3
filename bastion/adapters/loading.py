"""Threads load client libraries one at a time.

`requests`, which Google's and Kubernetes' libraries need, has circular imports. Two threads that begin to load it
through different modules find it half loaded: one fails, and so does each later attempt in that process.
"""

from __future__ import annotations

import threading

LIBRARIES = threading.RLock()
