"""Valid names of projects and resource types, and the largest amount."""

from __future__ import annotations

import re

# Keeps sums far below what JSON readers represent exactly.
AMOUNT_MAX = 10**9

# Project ids become object names in the bucket, resource types keys of its documents.
PLAIN_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
PLAIN_NAME_RULE = "use letters, digits, '.', '_' and '-', a letter or digit at both ends, at most 63 characters"
