"""Paper tables, studies and benchmarks."""
