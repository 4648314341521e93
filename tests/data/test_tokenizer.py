from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from datransformer.data.errors import InputError
from datransformer.data.tokenizer import (
    SPECIAL,
    FileTokenizer,
    WordTokenizer,
    _as_hugging_face,
    count_words,
    cut_words,
    load_tokenizer,
)


def cut(*texts: str) -> list[list[str]]:
    tokens, lengths = cut_words(pa.array(texts, pa.string()))
    flat = iter(token.decode() for token in tokens.to_pylist())
    return [[next(flat) for _ in range(length)] for length in lengths]


def cut_by_regex(text: str) -> list[str]:
    """The definition, run by Hugging Face's library."""
    twin = _as_hugging_face(SPECIAL)
    return [piece for piece, _ in twin.pre_tokenizer.pre_tokenize_str(twin.normalizer.normalize_str(text))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't they?", "do n't they ?"),
        ("it's Tom's, we'll", "it 's tom 's , we 'll"),
        ("it 's do n't", "it 's do n't"),  # already cut: stays
        ("The U.S. and e.g. this.", "the u.s. and e.g. this ."),
        ("$1,000.50, or 3.5%.", "$ 1,000.50 , or 3.5 % ."),
        ("O'Neill's rock'n'roll", "o'neill 's rock'n'roll"),
        ("'some' 'quoted'", "' some ' ' quoted '"),
        ("it's'a we'll'b don't'c", "it 's 'a we 'll 'b do n't 'c"),
        ("well-known -- no.It", "well - known -- no . it"),
        ("wait.... what..", "wait ... what ..."),
        ("``quoted''", "`` quoted ''"),
        ("Café “Über” – it’s…", 'café " über " - it \'s ...'),
        ("a\u00a0b\tc\nd\u200be", "a b c d e"),
        ("a\x1fb\x7fc", "a b c"),  # control characters are spaces, also in a text of ASCII alone
        ("!!!", "! ! !"),
        ("", ""),
        ("  ", ""),
    ],
)
def test_words_are_cut_as_documented(text: str, expected: str) -> None:
    assert cut(text) == [expected.split()]
    assert cut_by_regex(text) == expected.split()


alphabet = st.sampled_from(list("abnstmdrevl'.,-`01 \"!_()éß中’“—…\u00a0\nAZ"))


@settings(max_examples=400, deadline=None)
@given(st.lists(st.text(alphabet, max_size=30), min_size=1, max_size=4))
def test_the_fast_way_cuts_as_the_regular_expression(texts: list[str]) -> None:
    assert cut(*texts) == [cut_by_regex(text) for text in texts]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("zero", ["zero one", "zéro one"])
def test_slices_are_read_from_their_own_offset(kind: pa.DataType, zero: str) -> None:
    column = pa.array([zero, "Two three", "four", "five"], kind).slice(1, 2)
    tokens, lengths = cut_words(column)
    assert tokens.to_pylist() == [b"two", b"three", b"four"]
    assert lengths.tolist() == [2, 1]


def test_the_vocabulary_is_by_frequency_then_alphabet() -> None:
    counts = count_words([pa.array(["b a a", "c b"]), pa.array(["d, b"])])
    assert counts == Counter({"b": 3, "a": 2, "c": 1, "d": 1, ",": 1})
    assert WordTokenizer.from_counts(counts, limit=4, min_count=1).words == [*SPECIAL, "b", "a", ",", "c"]
    assert WordTokenizer.from_counts(counts, limit=9, min_count=2).words == [*SPECIAL, "b", "a"]


def test_further_words_come_behind_in_their_order_if_a_text_can_have_them() -> None:
    counts = count_words([pa.array(["b a b", "a, b c d"])])
    further = ["the", "b", "c", "New", "new york", "a-b", "", " ", "it's", "n't", "…", "naïve", "the"]
    words = WordTokenizer.from_counts(counts, further, limit=9, min_count=2).words
    assert words == [*SPECIAL, "b", "a", "the", "c", "n't", "naïve"]
    assert WordTokenizer.from_counts(counts, further, limit=3, min_count=2).words == words[:6]
    assert WordTokenizer.from_counts(counts, further, limit=2, min_count=1).words == words[:5]


def test_unknown_words_get_the_id_of_unknown() -> None:
    ids, lengths = WordTokenizer(["a", "b"]).encode(pa.array(["b x a", ""]))
    assert ids.tolist() == [4, 1, 3]
    assert lengths.tolist() == [3, 0]


def test_what_is_saved_loads_again_and_means_the_same_to_hugging_face(tmp_path: Path) -> None:
    text = "Don't say it's £5 or 3.5; say “o'neill” – ok…"
    tokenizer = WordTokenizer.from_counts(count_words([pa.array([text])]), limit=99, min_count=1)
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert isinstance(again, WordTokenizer)
    assert again.words == tokenizer.words
    twin = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert twin.encode(text + " new").ids == again.encode(pa.array([text + " new"])).ids.tolist()


def test_any_tokenizer_json_is_taken_with_its_ids_moved_up(tmp_path: Path) -> None:
    other = Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "two": 2}, unk_token="<unk>"))
    other.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    other.save(str(tmp_path / "other.json"))
    tokenizer = load_tokenizer(tmp_path / "other.json")
    assert isinstance(tokenizer, FileTokenizer)
    assert tokenizer.encode(pa.array(["two one three"])).ids.tolist() == [5, 4, 3]
    assert tokenizer.size == 6
    assert list(tokenizer.words) == [*SPECIAL, "<unk>", "one", "two"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 3}', "\x00"])
def test_a_tokenizer_that_cannot_be_read_is_one_clear_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"tokenizer\.json: not a tokenizer\.json that can be read"):
        load_tokenizer(path)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_tokenizer(tmp_path / "none.json")
