import os

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported: its kernels then run on the CPU

settings.register_profile("shared", deadline=None)  # another process on the same core is not a slow test
settings.load_profile("shared")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--data-dir", help="folder of the real data sets, for the tests marked slow")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.set_num_threads(1)  # the tests run in parallel processes
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return str(request.param)
