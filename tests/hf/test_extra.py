"""Without transformers the library works, and says in one line what is missing."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )


def test_the_library_does_without_transformers() -> None:
    done = run(
        "import sys; sys.modules['transformers'] = None\n"
        "import datransformer, datransformer.cli, datransformer.train.fit\n"
        "[getattr(datransformer, name) for name in datransformer.__all__]\n"
    )
    assert done.returncode == 0, done.stderr


def test_nothing_but_hf_imports_transformers() -> None:
    done = run(
        "import sys, datransformer, datransformer.cli, datransformer.train.fit\n"
        "[getattr(datransformer, name) for name in datransformer.__all__]\n"
        "assert 'transformers' not in sys.modules\n"
    )
    assert done.returncode == 0, done.stderr


def test_a_missing_extra_is_one_clear_line() -> None:
    for name in ("datransformer.hf", "datransformer.hf.convert"):
        done = run(f"import sys; sys.modules['transformers'] = None\nimport {name}")
        assert done.returncode == 1
        line = done.stderr.splitlines()[-1]
        assert line.endswith("datransformer.hf needs transformers: pip install datransformer[hf]")


def test_an_old_version_is_one_clear_line() -> None:
    done = run(
        "import sys, types; sys.modules['transformers'] = types.ModuleType('transformers')\n"
        "sys.modules['transformers'].__version__ = '5.16.9'\n"
        "from datransformer.data.errors import InputError\n"
        "try: import datransformer.hf\n"
        "except InputError as error: assert isinstance(error, ImportError); print(error)\n"
    )
    assert done.stdout.startswith("datransformer.hf: got transformers 5.16.9, expected 5.17 or newer"), done.stderr
