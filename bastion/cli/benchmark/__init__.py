"""Commands about benchmarks."""
