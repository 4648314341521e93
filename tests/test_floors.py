"""A floor of the house may import from those above it in the list, never from one below."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "datransformer"
FLOORS = [
    "version", "ops", "nn", "models", "data", "train", "hf", "export", "experiments", "report", "explore", "serve",
    "bench", "cli",
]  # fmt: skip


def floor_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported_modules(code: str, module: str) -> Iterator[str]:
    """Every module of the package that ``code`` imports anywhere, also inside functions."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "datransformer")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import; write the full name"
            if node.module and node.module.split(".")[0] == "datransformer":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong_imports(code: str, module: str) -> list[str]:
    own = floor_of(module)
    if own in ("__init__", "__main__"):  # the doors open onto every floor
        return []
    allowed = set(FLOORS[: FLOORS.index(own) + 1])
    if own == "data":
        allowed -= {"models"}
    if own == "report":
        allowed -= {"nn", "models"}
    return [name for name in imported_modules(code, module) if floor_of(name) not in allowed]


MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCE.rglob("*.py")
}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_import_goes_up_a_floor(module: str) -> None:
    assert floor_of(module) in ["__init__", "__main__", *FLOORS], f"{module} lives on no floor"
    assert wrong_imports(MODULES[module].read_text(encoding="utf-8"), module) == []


@pytest.mark.parametrize(
    ("module", "code"),
    [
        ("datransformer.ops.mapping", "from datransformer.nn.encoder import Encoder"),
        ("datransformer.ops.mapping", "def late():\n    import datransformer.nn.encoder"),
        ("datransformer.nn.encoder", "from datransformer.report import figures"),
        ("datransformer.nn.encoder", "from datransformer import Encoder"),
        ("datransformer.data.readers", "from datransformer.models.sentence import SentenceClassifier"),
        ("datransformer.report.figures", "from datransformer.nn.encoder import Encoder"),
    ],
)
def test_the_walk_sees_a_wrong_import(module: str, code: str) -> None:
    assert wrong_imports(code, module) != []


STANDARD = {"collections", "contextlib", "ctypes", "dataclasses", "importlib", "math", "numbers", "types", "typing"}


def test_ops_import_torch_only() -> None:
    for module, path in MODULES.items():
        if floor_of(module) != "ops":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            outside = {name.split(".")[0] for name in names} - {"datransformer", "torch", "triton"}
            assert outside <= STANDARD, module
