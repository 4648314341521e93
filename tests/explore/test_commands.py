import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from datransformer import cli

SOURCE = Path(__file__).parents[2] / "src"


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["datransformer", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_explain_writes_a_page(
    make_run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "page.html"
    first, second = make_run().folder, make_run(attention="vanilla").folder
    assert call(monkeypatch, "explain", first, "--text", "a good film", "--out", out, "--compare", second) == 0
    assert capsys.readouterr().out == f"{out}\n"
    page = out.read_text(encoding="utf-8")
    assert '"items": ["a", "good", "film"]' in page
    assert '"names": ["sentence-distance_aware", "sentence-vanilla"]' in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--text", " "], "text: got nothing, expected a text: the run's task is 'sentence'"),
        (["--text", "a", "--text-pair", "b"], "pair: got a text, expected none"),
        (["--text", "a", "--compare", "DOCUMENT"], "--compare: got a run of the task 'document', expected 'sentence'"),
        (["--text", "a", "--compare", "nowhere"], "nowhere: there is no such folder, expected a run directory"),
    ],
)
def test_what_cannot_be_explained_is_one_line(
    make_run: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    other = str(make_run("document", layers=2).folder)
    given = [option.replace("DOCUMENT", other) for option in options]
    assert call(monkeypatch, "explain", make_run().folder, "--out", tmp_path / "page.html", *given) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"error: {message}")
    assert not (tmp_path / "page.html").exists()


def test_explore_serves_until_it_is_interrupted(make_run: Any) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "datransformer", "explore", str(make_run().folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # which background jobs of a shell ignore
    )  # fmt: skip
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("Explorer: http://127.0.0.1:")
        with urllib.request.urlopen(line.split()[1]) as reply:
            assert b"<textarea" in reply.read()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert rest == ""
    assert errors == "It answers to this machine alone. Ctrl-C ends it.\n"
