import gzip
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from datransformer.data import vectors
from datransformer.data.errors import BadRows, InputError
from datransformer.data.vectors import WordVectors, files_of_vectors, read_vectors, read_words, write_vectors

WORDS = ["cat", "unseen", ". . .", "naïve"]
TEXT = "the 9 8 7\n, 0 0 0\ncat 0.5 -1 2e-1\n. . . 1 2 3\nnaïve 4 5 6\ncat 7 7 7\n"
ROWS = torch.tensor([[0.5, -1.0, 0.2], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
FOUND = torch.tensor([True, False, True, True])


def zipped(members: dict[str, str], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def check(read: WordVectors) -> None:
    torch.testing.assert_close(read.rows, ROWS)
    assert read.rows.dtype == torch.float32
    assert torch.equal(read.found, FOUND)
    assert read.skipped_lines == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("glove.txt", TEXT.encode()),
        ("noend.txt", TEXT.rstrip("\n").encode()),
        ("crlf.txt", TEXT.replace("\n", "\r\n").encode()),
        ("blank.txt", ("\n" + TEXT + "\n\n").encode()),
        ("bom.txt", TEXT.encode("utf-8-sig")),
        ("word2vec.txt", ("6 3\n" + TEXT).encode()),
        ("fasttext.vec", ("6 3\n" + TEXT.replace("\n", " \n")).encode()),
        ("glove.txt.gz", gzip.compress(TEXT.encode(), mtime=0)),
        ("named_otherwise.txt", gzip.compress(TEXT.encode(), mtime=0)),
        ("glove.zip", zipped({"glove.txt": TEXT})),
        ("stored.zip", zipped({"glove.txt": TEXT}, zipfile.ZIP_STORED)),
        ("one.zip", zipped({"no_suffix": TEXT})),
        ("several.zip", zipped({"folder/": "", "narrow.txt": "cat 1\n", "wide.txt": TEXT, "big.md": "x" * 999})),
        ("vec.zip", zipped({"README.txt": "read me", "crawl.vec": "6 3\n" + TEXT, "__MACOSX/x.txt": "y" * 999})),
    ],
)
@pytest.mark.parametrize("chunk", [7, 1 << 18])
def test_text_forms(tmp_path: Path, name: str, content: bytes, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "CHUNK", chunk)
    path = tmp_path / name
    path.write_bytes(content)
    seen: list[tuple[int, int]] = []
    check(read_vectors(path, WORDS, BadRows(), progress=lambda done, total: seen.append((done, total))))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > 0
    assert read_words(path, BadRows()) == ["the", ",", "cat", ". . .", "naïve"]
    assert files_of_vectors(path) == [path]


def test_first_line_with_a_word_of_numbers_and_spaces(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("2 . 0.5 1\n1999 3 4\ncat 5 6\n")
    read = read_vectors(path, ["1999", "cat", "2 ."], BadRows())
    assert read.rows.tolist() == [[3, 4], [5, 6], [0.5, 1]]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_npy(tmp_path: Path, dtype: type[np.floating]) -> None:
    np.save(tmp_path / "vectors.npy", np.array([[9, 8, 7], [0.5, -1, 0.2], [1, 2, 3], [4, 5, 6], [7, 7, 7]], dtype))
    (tmp_path / "words.txt").write_text("the\ncat\n. . .\nnaïve\ncat\n", encoding="utf-8")
    read = read_vectors(tmp_path / "vectors.npy", WORDS, BadRows())
    torch.testing.assert_close(read.rows, ROWS, atol=1e-4, rtol=0)
    assert torch.equal(read.found, FOUND)
    assert read_words(tmp_path / "vectors.npy", BadRows()) == ["the", "cat", ". . .", "naïve"]
    assert files_of_vectors(tmp_path / "vectors.npy") == [tmp_path / "vectors.npy", tmp_path / "words.txt"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("beside", [False, True])
def test_safetensors(tmp_path: Path, dtype: torch.dtype, beside: bool) -> None:
    path = tmp_path / "v.safetensors"
    words = [". . .", "naïve", "cat"]
    rows = ROWS[[2, 3, 0]].to(dtype)
    if beside:
        save_file({"vectors": rows}, path)
        (tmp_path / "v.words.txt").write_text("\n".join(words), encoding="utf-8")
    else:
        write_vectors(path, words, rows)
    seen: list[tuple[int, int]] = []
    read = read_vectors(path, WORDS, BadRows(), progress=lambda done, total: seen.append((done, total)))
    torch.testing.assert_close(read.rows, ROWS, atol=1e-4, rtol=0)
    assert torch.equal(read.found, FOUND)
    assert seen == [(path.stat().st_size, path.stat().st_size)]
    assert read_words(path, BadRows()) == words
    assert files_of_vectors(path) == [path, *([tmp_path / "v.words.txt"] if beside else [])]


def test_bad_lines_have_no_word_that_could_be_read(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_bytes(b"the 9 8 7\ndog 1 2\nc\xe9t 1 2 3\ncat 0.5 0.5 0.5\n")
    with pytest.raises(InputError, match=r"glove.txt, row 2, column 'vector': the wrong number of values"):
        read_words(path, BadRows())
    assert read_words(path, BadRows(skip=True)) == ["the", "cat"]


def test_words_with_values_that_cannot_be_used_are_skipped_with_them(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("good 1 2\nbad 1 nan\nworse 1 x\nworst 1e39 1\nfine -1 0\n")
    assert read_words(path, BadRows(skip=True)) == ["good", "fine"]
    assert read_words(path, BadRows()) == ["good", "bad", "worse", "worst", "fine"]  # read_vectors stops at them
    np.save(tmp_path / "v.npy", np.array([[1, 2], [1, np.nan], [3, 4]], np.float32))
    (tmp_path / "words.txt").write_text("good\nbad\nfine\n")
    assert read_words(tmp_path / "v.npy", BadRows(skip=True)) == ["good", "fine"]


def test_a_list_of_words_belongs_to_a_matrix_whatever_its_name(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.ones((1, 2), np.float32))
    (tmp_path / "v.npy").rename(tmp_path / "v.bin")
    (tmp_path / "words.txt").write_text("good\n")
    assert read_words(tmp_path / "v.bin", BadRows()) == ["good"]
    assert files_of_vectors(tmp_path / "v.bin") == [tmp_path / "v.bin", tmp_path / "words.txt"]
    for path in (tmp_path / "nope.npy", tmp_path, Path(), Path("/")):
        assert files_of_vectors(path) == [path]


def words_of_a_file() -> st.SearchStrategy[list[str]]:
    letters = st.characters(codec="utf-8", exclude_categories=("Cc", "Zs"))
    return st.lists(st.text(letters, min_size=1), min_size=1, max_size=9, unique=True)


@given(words_of_a_file(), st.integers(0, 2**32))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, words: list[str], seed: int) -> None:
    folder = tmp_path_factory.mktemp("vectors")
    rows = torch.randn(len(words), 5, generator=torch.Generator().manual_seed(seed))
    write_vectors(folder / "v.safetensors", words, rows)
    numbers = [" ".join(map(repr, row)) for row in rows.tolist()]
    text = "".join(f"{word} {row}\n" for word, row in zip(words, numbers, strict=True))
    (folder / "v.txt").write_text(text, encoding="utf-8")
    order = random.Random(seed).sample(range(len(words)), len(words))
    for name in ("v.safetensors", "v.txt"):
        read = read_vectors(folder / name, [words[place] for place in order], BadRows())
        assert torch.equal(read.rows, rows[order])
        assert read.found.all()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"dog 1 2", "the wrong number of values"),
        (b"dog 1 2 3 4", "the wrong number of values"),
        (b"cat 1 2 3 4", "the wrong number of values"),
        (b"cat 1  2 3", "the wrong number of values"),
        (b"cat", "the wrong number of values"),
        (b"cat 1 two 3", "a value that is not a number"),
        (b"cat 1 2_0 3", "a value that is not a number"),
        (b"cat 1 \xff 3", "a value that is not a number"),
        (b"cat 1 nan 3", "a value is NaN, infinite or too large"),
        (b"cat 1 -inf 3", "a value is NaN, infinite or too large"),
        (b"cat 1 1e39 3", "a value is NaN, infinite or too large"),
        (b"c\xe9t 1 2 3", "a word that is not UTF-8"),
    ],
)
@pytest.mark.parametrize("header", [b"", b"3 3\n"])
def test_bad_lines(tmp_path: Path, line: bytes, problem: str, header: bytes) -> None:
    path = tmp_path / "glove.txt"
    path.write_bytes(header + b"the 9 8 7\n" + line + b"\ncat 0.5 0.5 0.5\n")
    with pytest.raises(InputError, match=rf"glove.txt, row 2, column 'vector': {problem}, expected .*"):
        read_vectors(path, ["cat", "the"], BadRows())
    bad_rows = BadRows(skip=True)
    read = read_vectors(path, ["cat", "the"], bad_rows)
    assert read.skipped_lines == 1
    assert bad_rows.counts == {problem: 1}
    assert read.rows.tolist() == [[0.5, 0.5, 0.5], [9, 8, 7]]


def test_fewer_rows_than_the_header_says(tmp_path: Path) -> None:
    path = tmp_path / "w.vec"
    path.write_text("1000 2\ncat 1 2\n")
    with pytest.raises(InputError, match=r"row 2, .*: the file ends early, expected 1,000 rows"):
        read_vectors(path, ["cat"], BadRows())
    read = read_vectors(path, ["cat"], BadRows(skip=True))
    assert read.rows.tolist() == [[1, 2]]
    assert read.skipped_lines == 0


def corrupt_member() -> bytes:
    content = bytearray(zipped({"glove.txt": TEXT * 99}, zipfile.ZIP_STORED))
    content[100] ^= 1
    return bytes(content)


def locked_member() -> bytes:
    content = bytearray(zipped({"glove.txt": TEXT}))
    content[6] |= 1  # the flag in the file's own header, and in the directory's
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b"", "the file is empty"),
        ("empty.npy", b"", "the file is empty"),
        ("empty.txt.gz", gzip.compress(b"", mtime=0), "line 1 has no vector"),
        ("blank.txt", b"\n\n", "line 1 has no vector"),
        ("prose.txt", b"some words and no numbers\n", "line 1 has no vector, expected a word and numbers"),
        ("header.vec", b"5 0\n", "line 1 has no vector"),
        ("digits.vec", b"9" * 5000 + b" 3\n", r"has none of the 1 words"),
        ("none.txt", b"the 1 2\n", r"has none of the 1 words looked for \(such as 'cat'\)"),
        ("header_only.vec", b"0 2\n", "has none of the 1 words"),
        ("vectors.bin", b"2 3\ncat \0\0\0\x80\n", "is binary inside"),
        ("short.txt.gz", gzip.compress(TEXT.encode() * 99, mtime=0)[:-40], "cut short or corrupt"),
        ("flipped.txt.gz", gzip.compress(TEXT.encode(), mtime=0)[:-8] + b"\0" * 8, "cut short or corrupt"),
        ("plain.txt.gz", TEXT.encode(), "not a .gz file inside"),
        ("plain.zip", TEXT.encode(), "not a .zip file inside"),
        ("plain.npy", TEXT.encode(), "not a .npy file inside"),
        ("plain.safetensors", TEXT.encode(), "not a .safetensors file inside"),
        ("short.zip", zipped({"glove.txt": TEXT})[:-30], "cut short or corrupt"),
        ("flipped.zip", corrupt_member(), "cut short or corrupt"),
        ("locked.zip", locked_member(), "'glove.txt' cannot be unpacked"),
        ("nothing.zip", zipped({}), "has no text inside"),
        ("pictures.zip", zipped({"a.png": "x", "b.png": "y"}), "has no text inside, expected a .txt or .vec"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_vectors(path, ["cat"], BadRows())
    assert str(caught.value).startswith(str(path))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.txt: no such file, expected word vectors"):
        read_vectors(tmp_path / "none.txt", ["cat"], BadRows())
    with pytest.raises(InputError, match="cannot be read"):
        read_vectors(tmp_path, ["cat"], BadRows())


def test_a_file_without_line_ends_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "LONGEST_LINE", 100)
    monkeypatch.setattr(vectors, "CHUNK", 50)
    (tmp_path / "long.txt").write_bytes(b"x" * 1000)
    with pytest.raises(InputError, match="has a line of over 100 bytes"):
        read_vectors(tmp_path / "long.txt", ["cat"], BadRows())


def test_words_must_differ(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="words: 1 of 3 are there twice, expected each once"):
        read_vectors(tmp_path / "glove.txt", ["cat", "dog", "cat"], BadRows())


def save_npy(folder: Path, array: np.ndarray, words: bytes | None, allow_pickle: bool = False) -> Path:
    np.save(folder / "vectors.npy", array, allow_pickle=allow_pickle)
    if words is not None:
        (folder / "words.txt").write_bytes(words)
    return folder / "vectors.npy"


@pytest.mark.parametrize(
    ("array", "words", "message"),
    [
        (np.ones((2, 3), np.float32), None, "words.txt: no such file, expected the words of vectors.npy, one a line"),
        (np.ones((2, 3), np.float32), b"cat\n", "has 2 rows and 1 words, expected as many"),
        (np.ones((2, 3)), b"cat\ndog\n", r"holds float64 of shape \(2, 3\), expected float32 or float16"),
        (np.ones(2, np.float32), b"cat\ndog\n", r"holds float32 of shape \(2,\)"),
        (np.full((2, 3), np.nan, np.float32), b"dog\ncat\n", "row 2, column 'vector': a value is NaN"),
        (np.full((2, 3), np.inf, np.float16), b"dog\ncat\n", "row 2, column 'vector': a value is NaN"),
        (np.ones((2, 3), np.float32), b"cat\nd\xff\n", "words.txt, row 2, column 'vector': a word that is not UTF-8"),
        (np.array([[None]]), b"cat\n", "objects are never unpickled"),
    ],
)
def test_bad_npy(tmp_path: Path, array: np.ndarray, words: bytes | None, message: str) -> None:
    path = save_npy(tmp_path, array, words, allow_pickle=True)
    with pytest.raises(InputError, match=message):
        read_vectors(path, ["cat"], BadRows())


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"1.5?", b""), (b"False", "Fa«ß)".encode("latin-1")), (b"(20, 3)", b"(2e, 3)"), (b"(20, 3)", b"(-2, 3)")],
)
def test_npy_cut_short_or_broken(tmp_path: Path, old: bytes, new: bytes) -> None:
    array = np.frombuffer(b"1.5?" * 60, np.float32).reshape(20, 3)
    path = save_npy(tmp_path, array, b"cat\n" * 20)
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(InputError, match="not an array that can be read"):
        read_vectors(path, ["cat"], BadRows())


def test_bad_rows_of_a_matrix_are_skipped(tmp_path: Path) -> None:
    array = np.array([[1, np.nan], [3, 4], [5, 6]], np.float32)
    path = save_npy(tmp_path, array, b"cat\nd\xff\ncat")
    read = read_vectors(path, ["cat", "dog"], BadRows(skip=True))
    assert read.rows.tolist() == [[5, 6], [0, 0]]
    assert read.skipped_lines == 2


def write_short(path: Path) -> None:
    write_vectors(path, ["cat"], torch.ones(1, 2))
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: save_file({"weights": torch.ones(1, 2)}, path), r"has no tensor 'vectors', only \['weights'\]"),
        (lambda path: save_file({"vectors": torch.ones(1, 2)}, path), "v.words.txt: no such file"),
        (lambda path: save_file({"vectors": torch.ones(1, 2)}, path, {"words": "cat"}), "not a JSON list of strings"),
        (lambda path: save_file({"vectors": torch.ones(1, 2)}, path, {"words": "[1]"}), "not a JSON list of strings"),
        (
            lambda path: save_file({"vectors": torch.ones(1, 2)}, path, {"words": '["\\ud800"]'}),
            "not a JSON list of strings",
        ),
        (lambda path: save_file({"vectors": torch.ones(1, 2)}, path, {"words": '["a", "b"]'}), "1 rows and 2 words"),
        (
            lambda path: save_file({"vectors": torch.ones(1, 2).bfloat16()}, path, {"words": '["a"]'}),
            "holds bfloat16 of shape",
        ),
        (write_short, "not a safetensors file"),
    ],
)
def test_bad_safetensors(tmp_path: Path, write: Callable[[Path], object], message: str) -> None:
    path = tmp_path / "v.safetensors"
    write(path)
    with pytest.raises(InputError, match=message):
        read_vectors(path, ["cat"], BadRows())


def test_write_refuses_and_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v.safetensors"
    write_vectors(path, ["cat"], torch.ones(1, 2))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"rows: got torch.float32 of shape \(2, 2\), expected .* \(1, dim\)"):
        write_vectors(path, ["cat"], torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"rows: got torch.float64"):
        write_vectors(path, ["cat"], torch.ones(1, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="rows: some values are NaN"):
        write_vectors(path, ["cat"], torch.full((1, 2), torch.nan))
    with pytest.raises(ValueError, match=r"path: got 'v.txt', expected a name that ends in .safetensors"):
        write_vectors(tmp_path / "v.txt", ["cat"], torch.ones(1, 2))
    with pytest.raises(InputError, match="cannot be written"):
        write_vectors(tmp_path / "nowhere" / "v.safetensors", ["cat"], torch.ones(1, 2))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"cannot be written .*No space left"):
        write_vectors(path, ["dog"], torch.zeros(1, 2))
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["v.safetensors"]
    monkeypatch.setattr(vectors, "LONGEST_WORD_LIST", 10)
    with pytest.raises(ValueError, match="words: 1 words are too long a list"):
        write_vectors(path, ["a long word"], torch.zeros(1, 2))


def test_written_form_is_what_the_docstring_says(tmp_path: Path) -> None:
    path = tmp_path / "v.safetensors"
    write_vectors(path, ["naïve", "a b"], torch.ones(2, 3))
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert json.loads(header["__metadata__"]["words"]) == ["naïve", "a b"]
    assert header["vectors"]["shape"] == [2, 3]
