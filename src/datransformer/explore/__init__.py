"""The explorer: what a trained run attends to, on a local page."""
