"""What is sent and what comes back."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from datransformer.serve.limits import Limits, units
from datransformer.train.predict import is_plain

Row = tuple[str, ...]  # a text, or the two texts of a pair


class RequestError(ValueError):
    """A request that JSON allows and the run cannot answer. The message says what is wrong."""


class ExplainRequest(BaseModel):
    """One text, or one pair."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"text": "a film like no other"}]})

    text: str = Field(description="A text.")
    text_pair: str | None = Field(None, description="Its second text, for a run of the task pair and no other.")


class PredictRequest(BaseModel):
    """One text or many, or one pair or many."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"text": ["a film like no other", "two dull hours"]}]}
    )

    text: str | list[str] = Field(description="A text, or a list of texts.")
    text_pair: str | list[str] | None = Field(
        None, description="The second text of each, for a run of the task pair and no other."
    )


class Prediction(BaseModel):
    """The answer to a text."""

    prediction: str | float = Field(description="The most likely class, or the rating.")
    probabilities: dict[str, float] | None = Field(None, description="Of each class; none for a rating.")
    truncated: bool = Field(description="Whether the text was too long for the run and its end was cut off.")


class Predictions(BaseModel):
    """One answer a text, in the order of the texts."""

    predictions: list[Prediction]


class Head(BaseModel):
    """An attention head."""

    w: float | None = Field(description="The weight of distances that it learned; none for other kinds of attention.")
    v: float | None = Field(description="The shift of its sigmoid.")
    looks: str | None = Field(description="near (w < 0) or far (w > 0).")
    attention: list[list[list[float]]] = Field(
        description="Of each sequence, a row for each token: its attention weights over the tokens of the sequence."
    )


class Module(BaseModel):
    """An attention module."""

    name: str
    sequences: list[list[str]] = Field(description="The tokens between which it attends, cut to a size to look at.")
    heads: list[Head]


class Explanation(Prediction):
    """The answer to a text, and where each head looked for it."""

    cut: bool = Field(description="Whether sequences or tokens were left out of the weights below.")
    modules: list[Module]


class Problem(BaseModel):
    """Why there is no answer."""

    detail: str


class Health(BaseModel):
    """That the server answers, and with what."""

    status: str
    task: str
    classes: list[str] | None
    version: str


def read_rows(request: PredictRequest | ExplainRequest, limits: Limits, *, paired: bool) -> tuple[list[Row], int]:
    """The rows of a request, each a text or a pair, and their size in units; what cannot be answered raises."""
    columns: dict[str, Any] = {"text": request.text, "text_pair": request.text_pair}
    if paired and request.text_pair is None:
        raise RequestError("text_pair: missing, expected the second text of each text: the run's task is pair")
    if not paired and request.text_pair is not None:
        raise RequestError("text_pair: not expected, the run's task is not pair")
    if request.text_pair is None:
        del columns["text_pair"]
    lists = {name: [value] if isinstance(value, str) else value for name, value in columns.items()}
    for name, texts in lists.items():
        if not 0 < len(texts) <= limits.texts:
            raise RequestError(f"{name}: got {len(texts)} texts, expected 1 to {limits.texts}")
        for index, text in enumerate(texts):
            where = name if isinstance(columns[name], str) else f"{name}.{index}"
            if not is_plain(text):
                raise RequestError(f"{where}: holds a NUL byte or half a character, expected a text")
            if not text.strip():
                raise RequestError(f"{where}: empty, expected some text")
    if len({(isinstance(columns[name], str), len(texts)) for name, texts in lists.items()}) > 1:
        raise RequestError("text_pair: expected as many as in text, and a list where that is one")
    rows = list(zip(*lists.values(), strict=True))
    return rows, sum(units(*row) for row in rows)
