"""The snippets of docs/huggingface.md run, one after the other."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_snippets_run(tmp_path: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "huggingface.md").read_text(), flags=re.DOTALL)
    assert len(snippets) == 4
    (tmp_path / "snippets.py").write_text("\n".join(snippets), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "snippets.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "'label': 'good'" in done.stdout
