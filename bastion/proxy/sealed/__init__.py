"""The sealed form of an object, and the keys it takes: what `docs/reference/object-format.md` describes.

Layer: proxy, lowest part: nothing here knows of requests, or imports any other part of it.
"""
