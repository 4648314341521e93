"""The API in words, for people: one page that needs nothing from anywhere else, no script and no picture."""

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from typing import Any

STYLE = """
:root{color-scheme:light dark}body{margin:0 auto;max-width:52rem;padding:1.5rem 1rem 4rem;font:1rem/1.5 system-ui}
h2{margin-top:2.5rem}pre{overflow-x:auto;padding:.7rem;border:1px solid #8888}table{border-collapse:collapse}
td{padding:.2rem 1rem .2rem 0;vertical-align:top}
"""
_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def docs_page(schema: Mapping[str, Any]) -> str:
    """A page from the app's OpenAPI schema."""
    parts = [
        _operation(method, path, operation, schema)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(schema["info"]["title"])}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(schema["info"]["title"])}</h1>
<p>{escape(schema["info"]["description"])} For programs: <a href="openapi.json">openapi.json</a>.</p>
{"".join(parts)}</body>
</html>
"""


def _operation(method: str, path: str, operation: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    text = f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2>\n<p>{escape(operation['description'])}</p>\n"
    body = operation.get("requestBody")
    if body is not None:
        model = _resolve(body["content"]["application/json"]["schema"], schema)
        example = json.dumps(model["examples"][0], ensure_ascii=False)
        text += f"<pre>{escape(example)}</pre>\n<table>{_fields(model)}</table>\n"
    answers = operation["responses"].items()
    rows = "".join(f"<tr><td>{escape(code)}</td><td>{escape(it['description'])}</td></tr>" for code, it in answers)
    return f"{text}<h3>Answers</h3>\n<table>{rows}</table>\n"


def _fields(model: Mapping[str, Any]) -> str:
    return "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in model["properties"].items()
    )


def _resolve(reference: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
    return schema["components"]["schemas"][reference["$ref"].rpartition("/")[2]]
