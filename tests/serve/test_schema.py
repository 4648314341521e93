"""Requests that a machine makes up from the schema, valid and not: none of them breaks the server."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from datransformer.serve.app import create_app
from datransformer.train.run import Run

EXAMPLES = 50
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
LOCAL = {"host": "localhost"}


@pytest.mark.parametrize(
    ("path", "modes", "statuses"),
    [
        ("/predict", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], {200, 422}),
        ("/explain", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], {200, 422}),
        ("/healthz", [GenerationMode.POSITIVE], {200}),
        ("/metrics", [GenerationMode.POSITIVE], {200}),
    ],
)
def test_no_request_breaks_the_server(
    path: str, modes: list[GenerationMode], statuses: set[int], sentence_run: Run
) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(sentence_run), headers=LOCAL)
    operation = schema[path]["POST" if len(modes) > 1 else "GET"]
    met = set()

    @settings(max_examples=EXAMPLES, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes)))
    def call(case: Any) -> None:
        met.add(case.call_and_validate(headers=LOCAL, checks=CHECKS).status_code)

    call()
    assert statuses <= met
