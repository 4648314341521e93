"""Tensors in, tensors out. Imports torch only."""
