"""transformers' common tests on our models: what their runner reads, and that the page has what it found."""

import importlib.util
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RUNNER = ROOT / "tests" / "hf" / "judge" / "run.py"
RESULT = json.loads((ROOT / "docs" / "results" / "transformers_tests_cpu.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "huggingface.md").read_text(encoding="utf-8")

REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests"><testsuite name="pytest" errors="0" failures="4" skipped="3" tests="6">
<testcase classname="tests.cases.distance_aware_vit" name="test_passes" />
<testcase classname="tests.cases.distance_aware_vit" name="test_is_skipped"><skipped message="no GPU" /></testcase>
<testcase classname="tests.cases.distance_aware_vit" name="test_is_skipped_for_two_classes">
<skipped message="no GPU" /><skipped message="no RoPE" /></testcase>
<testcase classname="tests.cases.distance_aware_vit" name="test_can_set_attention_dynamically">
<failure message="AssertionError: no&#10;and more">trace</failure></testcase>
<testcase classname="tests.cases.distance_aware_vit" name="test_breaks">
<skipped message="no GPU" /><failure message="ValueError: yes">trace</failure><failure message="again" /></testcase>
<testcase classname="tests.cases.distance_aware_vit" name="test_model_get_set_embeddings">
<error message="failed on setup" /></testcase>
</testsuite></testsuites>
"""


def load_runner() -> Any:
    spec = importlib.util.spec_from_file_location("judge_run", RUNNER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run = load_runner()


def test_a_report_is_counted_by_tests() -> None:
    found = run.read_report("distance_aware_vit", REPORT)
    assert (found["passed"], found["skipped"], found["failed"]) == (1, 2, 3)
    assert found["skips"] == {"no GPU": 2}  # a test once, by its first reason
    messages = {failure["test"]: failure["message"] for failure in found["failures"]}
    assert messages == {
        "test_can_set_attention_dynamically": "AssertionError: no",
        "test_breaks": "ValueError: yes",
        "test_model_get_set_embeddings": "failed on setup",
    }


def test_what_was_not_expected_is_told() -> None:
    found = run.read_report("distance_aware_vit", REPORT)
    assert run.unexpected({"distance_aware_vit": found}) == [
        "distance_aware_vit: test_breaks failed: ValueError: yes",
        "distance_aware_vit: test_model_weights_reload_no_missing_tied_weights did not fail, as EXPECTED says",
    ]
    elsewhere = run.read_report("distance_aware", REPORT)
    assert len(run.unexpected({"distance_aware": elsewhere})) == 3
    assert {suite for suite, _ in run.EXPECTED} <= set(run.SUITES)


@pytest.mark.parametrize(("name", "told"), [("missing", "No such file"), ("text", "expected a .tar.gz"),
                                            ("empty", "expected the source distribution of transformers")])  # fmt: skip
def test_a_file_that_is_no_source_distribution_is_refused(
    name: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("not an archive", encoding="utf-8")
    tarfile.open(tmp_path / "empty", "w:gz").close()
    monkeypatch.setattr(run, "find_spec", lambda name: name)  # whether or not the tests' own needs are there
    monkeypatch.setattr(sys, "argv", ["run.py", "--sdist", str(tmp_path / name), "--out", str(tmp_path / "out.json")])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert f"--sdist {tmp_path / name}: got " in printed
    assert told in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "out.json").exists()


def test_what_is_not_a_plain_file_is_not_unpacked(tmp_path: Path) -> None:
    for target in ("/etc/hostname", "../../../elsewhere"):
        path = tmp_path / "links.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name in run.NEEDED:
                member = tarfile.TarInfo(f"transformers-1.0/tests/{name}")
                member.type, member.linkname = tarfile.SYMTYPE, target
                archive.addfile(member)
        with pytest.raises(run.InputError, match=r"links\.tar\.gz: got .*, expected a \.tar\.gz"):
            run.unpack(path, "1.0", tmp_path)


@pytest.mark.parametrize("out", [".", "missing/out.json"])
def test_where_the_result_cannot_go_is_told_first(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "judge", lambda *_: pytest.fail("ran"))
    monkeypatch.setattr(sys, "argv", ["run.py", "--out", str(tmp_path / out)])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == 2
    assert f"--out {tmp_path / out}: expected a file" in capsys.readouterr().err


def test_why_pytest_could_not_run_is_told(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "cases.py").write_text("import no_such_module\n", encoding="utf-8")
    with pytest.raises(run.InputError, match="no_such_module"):
        run.run_suite(tmp_path, "distance_aware")


def test_without_what_the_tests_need_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "find_spec", lambda name: None)
    with pytest.raises(run.InputError, match="pip install parameterized"):
        run.judge(None, run.SUITES, lambda line: None)


def test_nothing_unexpected_is_in_the_result_file() -> None:
    assert tuple(RESULT["suites"]) == run.SUITES
    assert run.unexpected(RESULT["suites"]) == []
    assert RESULT["absent"] == run.ABSENT
    for suite, found in RESULT["suites"].items():
        assert found["passed"] > 60, suite
        assert found["skipped"] == sum(found["skips"].values())
        assert {(suite, failure["test"]): failure["expected"] for failure in found["failures"]} == {
            key: reason for key, reason in run.EXPECTED.items() if key[0] == suite
        }


def test_the_page_has_the_counts_of_the_result_file() -> None:
    assert f"transformers {RESULT['transformers']}" in PAGE
    assert "\n".join(run.count_table(RESULT)) in PAGE
    assert "\n".join(run.skip_table(RESULT)) in PAGE
    text = " ".join(PAGE.split())
    for test, _, reason in run.FAILING:
        assert f"`{test}`: {reason}" in text
    assert set(re.findall(r"^- `(test_\w+)`", PAGE, re.MULTILINE)) == {test for test, *_ in run.FAILING}


@pytest.mark.slow
def test_the_tests_run(tmp_path: Path) -> None:
    pytest.importorskip("parameterized")
    out = tmp_path / "out.json"
    command = [sys.executable, str(RUNNER), "--suite", "distance_aware", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    if found["transformers"] == RESULT["transformers"]:
        assert found["suites"]["distance_aware"] == RESULT["suites"]["distance_aware"]
