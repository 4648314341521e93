"""The prediction API."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Security
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from datransformer.data.errors import InputError
from datransformer.serve.batching import AnswerError, Batcher, QueueFullError
from datransformer.serve.explain import explain
from datransformer.serve.guard import Guard, busy, refuse
from datransformer.serve.limits import Limits
from datransformer.serve.metrics import Metrics
from datransformer.serve.page import POLICY, docs_page
from datransformer.serve.schemas import (
    ExplainRequest,
    Explanation,
    Health,
    Predictions,
    PredictRequest,
    Problem,
    RequestError,
    Row,
    read_rows,
)
from datransformer.train.predict import answer_each
from datransformer.train.progress import printable
from datransformer.train.run import Run
from datransformer.train.tasks import ALONE, Worker
from datransformer.version import __version__

SHOWN_PROBLEMS, SHOWN_CHARACTERS = 3, 500
PATHS = ("/predict", "/explain", "/healthz", "/metrics", "/docs")
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": why, "model": Problem}
    for status, why in {
        400: "The request cannot be read: not UTF-8, too deep, or with too long a number.",
        401: "The key is missing or wrong, where the server has one.",
        408: "The request took too long to arrive.",
        413: "The request is too large.",
        421: "The host is not this machine, and the server has no key.",
        422: "The request cannot be answered; the detail says what was expected.",
        500: "The model failed.",
        503: "Too many requests wait; Retry-After says when to ask again.",
        504: "The answer took too long.",
    }.items()
}


def create_app(run: Run, limits: Limits | None = None, *, key: str | None = None, worker: Worker = ALONE) -> FastAPI:
    """The app that answers for a run.

    Args:
        run: A trained run of any task but recommend.
        limits: How much it takes on.
        key: What requests must bring as ``Authorization: Bearer …``; None: nothing.
        worker: Where the model computes.
    """
    if run.config.task == "recommend":
        raise InputError(f"{run.folder}: a recommender ranks the impressions of files, expected another task to serve")
    limits = limits or Limits()
    metrics = Metrics()
    run.model.to(worker.device)

    def predict_rows(rows: list[Row]) -> list[dict[str, Any]]:
        return answer_each(run, rows, worker)

    def explain_rows(rows: list[Row]) -> list[bytes]:
        return [json.dumps(explain(run, *row, worker=worker), allow_nan=False).encode() for row in rows]

    predictor = Batcher(predict_rows, batch=limits.batch, wait=limits.wait, queue=limits.queue, told=metrics.batch)
    explainer = Batcher(explain_rows, batch=1, wait=0, queue=limits.queue)
    metrics.watch_queue(lambda: predictor.waiting + explainer.waiting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with ThreadPoolExecutor(1, "model") as model_thread:
            predictor.start(model_thread)
            explainer.start(model_thread)
            yield
            await predictor.close()
            await explainer.close()

    app = FastAPI(
        title="datransformer",
        description=f"Answers of a trained model, task {run.config.task}.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.add_middleware(Guard, limits=limits, key=key, metrics=metrics)
    locked = [] if key is None else [Security(HTTPBearer(auto_error=False))]

    async def ask(batcher: Batcher, request: PredictRequest | ExplainRequest) -> Sequence[Any]:
        rows, size = read_rows(request, limits, paired=run.config.task == "pair")
        async with asyncio.timeout(limits.timeout):
            return await batcher.ask(rows, size)

    @app.post("/predict", response_model=Predictions, responses=PROBLEMS, dependencies=locked)
    async def predict(request: PredictRequest) -> Response:
        """Classify or rate one text or many, as `datransformer predict` does."""
        return JSONResponse({"predictions": await ask(predictor, request)})

    @app.post("/explain", response_model=Explanation, responses=PROBLEMS, dependencies=locked)
    async def explain_text(request: ExplainRequest) -> Response:
        """The answer to one text with w, v and the attention weights of every head.

        Weights are those of the whole text, or of its first 512 tokens read as a text of their own where it has more;
        given are those among the first 48 tokens of a sequence, and of a document those of its first 8 sentences.
        Where that leaves something out, cut is true.
        """
        (answer,) = await ask(explainer, request)
        return Response(answer, media_type="application/json")

    @app.get("/healthz", response_model=Health)
    async def healthz() -> dict[str, Any]:
        """Whether the server answers."""
        return {"status": "ok", "task": run.config.task, "classes": run.labels.classes, "version": __version__}

    @app.get("/metrics", response_class=Response, dependencies=locked)
    async def show_metrics() -> Response:
        """Counters, in the text format of Prometheus."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", include_in_schema=False)
    async def start() -> RedirectResponse:
        return RedirectResponse("/docs")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()), headers={"content-security-policy": POLICY})

    _handle_errors(app, limits)
    return app


def _handle_errors(app: FastAPI, limits: Limits) -> None:
    """Turn what can go wrong into answers that say so, and tell nothing else."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return refuse(422, "the request: expected the header content-type: application/json")
        problems = "; ".join(dict.fromkeys(_spell(problem) for problem in error.errors()[:SHOWN_PROBLEMS]))
        return refuse(422, printable(problems)[:SHOWN_CHARACTERS])  # the names of fields are the client's

    @app.exception_handler(HTTPException)
    async def elsewhere(request: Request, error: HTTPException) -> JSONResponse:
        headers = {name.lower(): value for name, value in (error.headers or {}).items()}
        told = {
            400: "the request cannot be read, expected JSON in UTF-8",
            404: f"no such path, expected one of: {', '.join(PATHS)}",
            405: f"expected {headers.get('allow', 'another method')}",
        }
        return refuse(error.status_code, told.get(error.status_code, error.detail), **headers)

    @app.exception_handler(RequestError)
    async def unanswerable(request: Request, error: RequestError) -> JSONResponse:
        return refuse(422, str(error))

    @app.exception_handler(QueueFullError)
    async def full(request: Request, error: QueueFullError) -> JSONResponse:
        return busy()

    @app.exception_handler(TimeoutError)
    async def late(request: Request, error: TimeoutError) -> JSONResponse:
        return refuse(504, f"no answer within {limits.timeout:g} s")

    @app.exception_handler(AnswerError)
    async def failed(request: Request, error: AnswerError) -> JSONResponse:
        return refuse(500, "the model could not answer this request")

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> JSONResponse:
        return refuse(500, "the server could not answer this request")


def _spell(problem: Mapping[str, Any]) -> str:
    """One problem that pydantic found: where, and what was expected."""
    if problem["type"] == "json_invalid":
        return f"the request is not JSON from character {problem['loc'][-1]} on"
    place = [str(part) for part in problem["loc"] if part != "body"]
    if place and problem["type"] in ("string_type", "list_type"):
        many = any(part.startswith("list[") for part in place) or "str" in place
        return f"{place[0]}: expected a text{' or a list of texts' if many else ''}"
    if problem["type"] == "missing" and not place:
        return "the request: empty, expected a JSON object"
    if problem["type"] in ("model_attributes_type", "dict_type"):
        return "the request: expected a JSON object"
    return f"{'.'.join(place) or 'the request'}: {problem['msg']}"
