"""One file per task shape, built from the parts in `datransformer.nn`."""
