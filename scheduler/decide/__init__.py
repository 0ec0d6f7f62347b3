"""The parts of a decision: who may start, on what, and at whose cost."""
