"""Run the common tests that transformers ships for models on ours, and say what passed, what was skipped and why.

The tests are in the source distribution of transformers alone, which is fetched in the version that is installed. They
run on the CPU, offline. Exit code 1: something failed that `EXPECTED` does not list, or passed that it does; 2: they
could not be run.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from xml.etree import ElementTree

import torch

from datransformer.data.errors import InputError
from datransformer.data.store import write_text
from datransformer.experiments.machine import commit, markdown
from datransformer.hf.retrofit import PREFIX, SELF_ATTENTION
from datransformer.nn.mixers import MIXERS

TOLD = 30  # last lines of pytest where it could not run
HERE = Path(__file__).parent
SOURCE = Path(__file__).parents[3] / "src"
NEEDED = ("test_modeling_common.py", "test_configuration_common.py", "test_training_mixin.py")

# What the tests import and no archive has.
STAND_INS = {
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "utils/test_configuration_utils.py": 'config_common_kwargs = {"return_dict": False, "output_hidden_states": True, '
    '"chunk_size_feed_forward": 5, "architectures": ["Any"], "problem_type": "regression"}\n',
}
ABSENT = {
    "ExportTesterMixin": "in no archive; an empty class stands in, so none of its tests ran",
    "GenerationTesterMixin": "in no archive; an empty class stands in, so none of its tests ran",
    "config_common_kwargs": "in no archive; five arguments that every config takes stand in for its list",
}

TURNED = tuple(f"{PREFIX}{kind}" for kind in SELF_ATTENTION)
STOCK = tuple(f"stock_{kind}" for kind in SELF_ATTENTION)  # nothing of ours in them: the control
SUITES = (*MIXERS, *TURNED, *STOCK)
SHOWN = ("distance_aware", "distance_aware_bert", "distance_aware_vit", "stock_bert")  # whose skips the page has

# (test, suites, reason) of what fails on purpose, or not because of us.
FAILING: tuple[tuple[str, Sequence[str], str], ...] = (
    (
        "test_can_set_attention_dynamically",
        TURNED,
        "the attention cannot be switched to another one, which would leave out w and v",
    ),
    (
        "test_model_weights_reload_no_missing_tied_weights",
        TURNED,
        "files without w and v are refused instead of filled up",
    ),
    (
        "test_training_overfit",
        ("vanilla",),
        "the gradient falls by 88 %, not by 90 %",
    ),
    (
        "test_model_get_set_embeddings",
        (f"{PREFIX}vit", "stock_vit"),
        "asks a ViT for word embeddings; the stock ViT fails too",
    ),
)
EXPECTED = {(suite, test): reason for test, suites, reason in FAILING for suite in suites}

# Kinds of reasons to skip a test, by what they contain; the first that fits.
SKIPS = {
    "needs a GPU, DeepSpeed, FlashAttention or kernels of the hub": ("test requires",),
    "compares attention implementations that the model does not have": ("SDPA", "sdpa"),
    "needs `GenerationTesterMixin`": ("GenerationTesterMixin",),
    "is marked slow": ("test is slow",),
    "is for models with other parts: experts, RoPE, sub-models and so on": ("",),
}


def fetch_sdist(version: str, folder: Path) -> Path:
    """The source distribution from the package index, which pip knows how to reach and whose hashes pip checks."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", "transformers", "--dest", str(folder), f"transformers=={version}"]
    done = subprocess.run(command, capture_output=True, text=True)
    found = list(folder.glob("transformers-*.tar.gz"))
    if done.returncode or not found:
        raise InputError(f"pip could not fetch transformers {version}; --sdist takes a file: {_last(done.stderr)}")
    return found[0]


def unpack(sdist: Path, version: str, folder: Path) -> Path:
    """Lay out the tests that are needed, the stand-ins and our cases as one package, and return the folder of it."""
    name = f"transformers-{version}"
    try:
        with tarfile.open(sdist, "r:gz") as archive:
            for file in NEEDED:
                archive.extract(f"{name}/tests/{file}", folder, filter="data")
    except KeyError as error:
        raise InputError(
            f"--sdist {sdist}: got {error.args[0]}, expected the source distribution of transformers {version}"
        ) from error
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise InputError(f"--sdist {sdist}: got {error}, expected a .tar.gz of transformers {version}") from error
    tests = folder / name / "tests"
    for path, text in {**STAND_INS, "__init__.py": "", "cases.py": (HERE / "cases.py").read_text("utf-8")}.items():
        (tests / path).parent.mkdir(exist_ok=True)
        (tests / path).write_text(text, encoding="utf-8")
    (folder / name / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")  # so that none further up is read
    return folder / name


def run_suite(folder: Path, suite: str) -> str:
    """Run one class of the cases in a process of its own, and return its report as JUnit XML."""
    report = folder / f"{suite}.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("RUN_", "PYTEST_"))},
        "PYTHONPATH": os.pathsep.join(paths),
        "CUDA_VISIBLE_DEVICES": "",  # one result, whatever the machine has
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [*command, f"tests/cases.py::{suite}"], cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode not in (0, 1) or not report.is_file():  # neither all passed nor some failed
        told = "\n".join((done.stdout + done.stderr).splitlines()[-TOLD:])
        raise InputError(f"{suite}: pytest ended with {done.returncode}:\n{told}")
    return report.read_text(encoding="utf-8")


def read_report(suite: str, xml: str) -> dict[str, Any]:
    """Counts of tests. One with parts for several classes fails, or else is skipped, if one of its parts is."""
    passed, skips, failures, failed = 0, Counter[str](), [], set()
    for case in ElementTree.fromstring(xml).iter("testcase"):
        test = case.get("name", "")
        wrong = [part for part in case if part.tag in ("failure", "error")]
        skipped = case.find("skipped")
        if wrong:
            failed.add(test)
            message = (wrong[0].get("message") or "").strip().partition("\n")[0]
            failures.append({"test": test, "message": message, "expected": EXPECTED.get((suite, test))})
        elif skipped is not None:
            skips[skipped.get("message") or ""] += 1
        else:
            passed += 1
    return {
        "passed": passed,
        "skipped": skips.total(),
        "failed": len(failures),
        "skips": dict(skips.most_common()),
        "failures": failures,
        "passed_unexpectedly": sorted(test for where, test in EXPECTED if where == suite and test not in failed),
    }


def unexpected(suites: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each test that failed and should not have, or the other way round."""
    lines = []
    for suite, found in suites.items():
        lines += [
            f"{suite}: {failure['test']} failed: {failure['message']}"
            for failure in found["failures"]
            if failure["expected"] is None
        ]
        lines += [f"{suite}: {test} did not fail, as EXPECTED says" for test in found["passed_unexpectedly"]]
    return lines


def judge(sdist: Path | None, suites: Iterable[str], tell: Callable[[str], None]) -> dict[str, Any]:
    """Run the tests.

    Args:
        sdist: The source distribution; None: fetched.
        suites: Some of `SUITES`.
        tell: Gets a line a suite.
    """
    if find_spec("parameterized") is None:
        raise InputError("transformers' tests need parameterized: pip install parameterized")
    version = importlib.metadata.version("transformers")
    with TemporaryDirectory(prefix="datransformer-judge-") as name:
        folder = Path(name)
        if sdist is None:
            tell(f"fetching the source distribution of transformers {version}")
            sdist = fetch_sdist(version, folder)
        tests = unpack(sdist, version, folder)
        suites = tuple(suites)
        tell(f"running {len(suites)} suite{'' if len(suites) == 1 else 's'}, a quarter of a minute each or more")
        result: dict[str, Any] = {
            "transformers": version,
            "sdist_sha256": hashlib.sha256(sdist.read_bytes()).hexdigest(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "pytest": importlib.metadata.version("pytest"),
            "commit": commit(),
            "absent": ABSENT,
            "suites": {},
        }
        for suite in suites:
            begun = time.perf_counter()
            found = result["suites"][suite] = read_report(suite, run_suite(tests, suite))
            counts = ", ".join(f"{found[key]} {key}" for key in ("passed", "skipped", "failed"))
            tell(f"{suite}: {counts} ({time.perf_counter() - begun:.0f} s)")
    return result


def count_table(result: dict[str, Any]) -> list[str]:
    """Passed, skipped and failed of each suite."""
    rows = [
        (f"`{suite}`", *(str(found[key]) for key in ("passed", "skipped", "failed")))
        for suite, found in result["suites"].items()
    ]
    return markdown(("suite", "passed", "skipped", "failed"), rows)


def skip_table(result: dict[str, Any]) -> list[str]:
    """How many tests the suites of `SHOWN` skip, for each kind of reason."""
    counts = {suite: Counter[str]() for suite in SHOWN}
    for suite in SHOWN:
        for reason, number in result["suites"][suite]["skips"].items():
            counts[suite][_kind(reason)] += number
    rows = [(name, *(str(counts[suite][name]) for suite in SHOWN)) for name in SKIPS]
    return markdown(("skipped because the test", *(f"`{suite}`" for suite in SHOWN)), rows)


def _kind(reason: str) -> str:
    return next(kind for kind, parts in SKIPS.items() if any(part in reason for part in parts))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no output")


def main() -> None:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sdist", type=Path, help="the source distribution, a .tar.gz; otherwise pip fetches it")
    parser.add_argument("--out", type=Path, help="JSON file for all counts, reasons and failures")
    parser.add_argument("--suite", action="append", choices=SUITES, help="run this one alone; can be given again")
    arguments = parser.parse_args()
    out = arguments.out
    if out is not None and (out.is_dir() or not os.access(out.parent, os.W_OK)):  # not after minutes
        parser.exit(2, f"{parser.prog}: --out {out}: expected a file in a folder that can be written to\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that folder and tests end too
    try:
        result = judge(arguments.sdist, arguments.suite or SUITES, _tell)
        if out is not None:
            write_text(out, json.dumps(result, indent=2) + "\n")
    except (InputError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, f"{parser.prog}: stopped\n")
    lines = unexpected(result["suites"])
    print("\n".join([*count_table(result), "", *(lines or ["Nothing unexpected."])]))  # noqa: T201
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
