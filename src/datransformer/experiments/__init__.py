"""Plans of runs and benchmarks."""
