"""How training ends before it has ended."""


class TrainingError(RuntimeError):
    """Training cannot go on. The message says at which step, in which batch and layer."""


class Interrupted(Exception):  # noqa: N818, it is no error
    """Someone asked the run to stop, and it did, after writing a checkpoint."""
