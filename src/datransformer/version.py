"""The version, in a place that every floor can read."""

__version__ = "0.1.0"
