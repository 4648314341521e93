"""Modules: the mixers, the encoder around them, pooling."""
