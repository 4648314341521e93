"""What the project says about itself is true: files, names and versions exist. `tests/docs` runs its snippets."""

import re
import tomllib
from pathlib import Path

import datransformer

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_make_targets_and_files_that_the_documents_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for document in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        for target in re.findall(r"\bmake ([a-z]+)\b(?=[` ]*(?:#|`|$))", text, flags=re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), f"{document}: make {target}"
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
            assert (ROOT / link).exists(), f"{document}: {link}"


def test_names_in_the_table_are_all_names() -> None:
    for names, where in re.findall(r"^\|[^|]*\|([^|]*)\| `([A-Z]+)` \|$", README, flags=re.MULTILINE):
        known = getattr(datransformer, where)
        assert set(re.findall(r"`([a-z0-9_]+)`", names)) == set(known), where


def test_torch_is_pinned() -> None:
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + [name for extra in project["optional-dependencies"].values() for name in extra]
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    for requirement in wanted:
        name = re.split(r"[\[><=;]", requirement)[0].lower()
        assert name == "datransformer" or name in pinned, requirement


def test_public_door_names_exist() -> None:
    assert sorted(datransformer.__all__) == sorted(set(datransformer.__all__))
    for name in datransformer.__all__:
        assert getattr(datransformer, name) is not None
