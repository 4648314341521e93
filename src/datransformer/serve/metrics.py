"""What a server counts, for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "datransformer_requests", "Requests by path and status.", ("path", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "datransformer_request_seconds",
            "From a request's first byte to the end of its answer.",
            ("path",),
            buckets=SECONDS,
            registry=self._registry,
        )
        self._batches = Histogram(
            "datransformer_batch_texts", "Texts of a batch.", buckets=ITEMS, registry=self._registry
        )
        self._queue = Gauge("datransformer_queue_units", "What waits for the model.", registry=self._registry)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, texts: int) -> None:
        """Count a batch."""
        self._batches.observe(texts)

    def watch_queue(self, waiting: Callable[[], float]) -> None:
        """Read the length of the queue when it is asked for."""
        self._queue.set_function(waiting)

    def text(self) -> bytes:
        """All of it, in Prometheus's text format."""
        return generate_latest(self._registry)
