"""Plans of runs: the demo."""
