"""How much a server takes on."""

from dataclasses import dataclass

from datransformer.ops.checks import check_positive_int

UNIT = 4096  # characters


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and how much is answered and kept waiting at once.

    A batch and the queue are counted in units: a text is one, and one more for every 4096 characters, so that they
    bound tokens and memory as well as texts.

    Args:
        texts: Texts of a request.
        body: Bytes of a request.
        batch: Units that the model answers at once, whatever requests they come from. 1: no batching.
        wait: Seconds that a request waits for others to share its batch while the model is free.
        queue: Units that wait for the model, and requests that are arriving; what is beyond is refused.
        timeout: Seconds for a request to arrive, and again to be answered.
    """

    texts: int = 256
    body: int = 1 << 20
    batch: int = 64
    wait: float = 0.002
    queue: int = 1024
    timeout: float = 30.0

    def __post_init__(self) -> None:
        for name in ("texts", "body", "batch", "queue"):
            check_positive_int(name, getattr(self, name))
        if not 0 <= self.wait < float("inf"):
            raise ValueError(f"wait: got {self.wait}, expected 0 or more seconds")
        if not 0 < self.timeout < float("inf"):
            raise ValueError(f"timeout: got {self.timeout}, expected more than 0 seconds")
        largest = self.texts + self.body // UNIT
        if self.queue < largest:
            raise ValueError(f"queue: got {self.queue}, expected at least {largest}, room for the largest request")


def units(*texts: str) -> int:
    """What a text, or the two texts of a pair together, count for in a batch and in the queue."""
    return 1 + sum(map(len, texts)) // UNIT
