"""Data that experiments find in a folder."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def sst(tmp_path: Path) -> Path:
    """A folder with a tiny SST in it."""
    folder = tmp_path / "given" / "sst"
    folder.mkdir(parents=True)
    for name in ("train", "dev", "test"):
        labels = [number % 2 for number in range(40)]
        texts = [f"it is {'not ' * label}good" for label in labels]
        pq.write_table(pa.table({"text": texts, "label2": labels, "label5": labels}), folder / f"{name}.parquet")
    return tmp_path / "given"
