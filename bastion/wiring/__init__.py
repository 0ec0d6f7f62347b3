"""Entry points and wiring: the only place that knows which adapter serves what."""
