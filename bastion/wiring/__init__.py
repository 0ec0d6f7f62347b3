"""Entry points, and the choice of adapters."""
