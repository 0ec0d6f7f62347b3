"""The pure core: job specs, states, the reconciler, keys and limits. No I/O, no clock, no randomness."""
