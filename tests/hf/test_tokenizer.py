import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from datransformer.data.tokenizer import UNKNOWN, WordTokenizer, normalise
from datransformer.hf.tokenizer import DATransformerTokenizer, convert_tokenizer

WORDS = ["do", "n't", "it", "'s", "u.s.", "1,000.5", "o'neill", "...", "--", "``", "café", "中文", "a", "ab", "[", "]"]
OURS = WordTokenizer([*WORDS, "pad", "sep", "unk", "i", "ß", ".", ",", "'", "s", "t", "n"])


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> DATransformerTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    OURS.save(folder / "tokenizer.json")
    tokenizer, moved = convert_tokenizer(folder / "tokenizer.json", 1000)
    assert moved == 0
    tokenizer.save_pretrained(folder / "hf")
    loaded = AutoTokenizer.from_pretrained(folder / "hf")
    assert isinstance(loaded, DATransformerTokenizer)
    return loaded


def ours(text: str) -> list[int]:
    return OURS.encode(pa.array([text], pa.string())).ids.tolist()[:1000] or [UNKNOWN]


alphabet = st.sampled_from(
    [*"abnstmdrevlopiu'.,-`01 \"!_()éß中文İ’“—…\u00a0\u200b\n\t\x00AZ", "[PAD]", "[SEP]", "\U0001f600"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(alphabet, max_size=30).map("".join))
def test_ids_are_ours(theirs: DATransformerTokenizer, text: str) -> None:
    assert theirs(text).input_ids == ours(text)


@pytest.mark.parametrize("text", ["", " ", "\n\u200b", "a" * 100_000, "do " * 10_000, "it's " * 700, "ΑΣ ΌΣΟΣ"])
def test_texts_of_no_and_of_many_tokens(theirs: DATransformerTokenizer, text: str) -> None:
    assert theirs(text).input_ids == ours(text)
    assert theirs([text, "do"]).input_ids == [ours(text), ours("do")]


def test_the_caller_may_say_where_to_cut(theirs: DATransformerTokenizer) -> None:
    text = "it's " * 1000
    assert len(theirs(text).input_ids) == 1000
    assert len(theirs(text, truncation=False).input_ids) == 2000
    assert len(theirs(text, truncation=True, max_length=7).input_ids) == 7
    assert len(theirs(text).input_ids) == 1000


def test_a_pair_has_a_separator_and_each_text_its_own_limit(theirs: DATransformerTokenizer) -> None:
    separator = theirs.sep_token_id
    assert theirs("it's", "do").input_ids == [*ours("it's"), separator, *ours("do")]
    assert theirs(["it's", ""], ["do", "a"]).input_ids == [
        [*ours("it's"), separator, *ours("do")],
        [1, separator, *ours("a")],
    ]
    long = "it's " * 501
    theirs(long)
    assert theirs(long, "do").input_ids == [*ours(long), separator, *ours("do")]
    assert theirs("do", long).input_ids == [*ours("do"), separator, *ours(long)]


def test_batches_are_padded_with_our_padding(theirs: DATransformerTokenizer) -> None:
    batch = theirs(["do", "it's"], padding=True)
    assert set(batch) == {"input_ids", "attention_mask"}
    assert batch.input_ids == [[*ours("do"), 0], ours("it's")]
    assert batch.attention_mask == [[1, 0], [1, 1]]


def test_every_character_is_normalised_as_ours(theirs: DATransformerTokenizer) -> None:
    known = [chr(code) for code in range(1, 0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]
    texts = [f"a{character}B" for character in known]
    by_them = theirs.backend_tokenizer.normalizer.normalize_str
    assert [by_them(text) + " " for text in texts] == normalise(pa.array(texts)).to_pylist()


def test_ids_have_their_words_back(theirs: DATransformerTokenizer) -> None:
    assert theirs.convert_ids_to_tokens(ours("it's [PAD]")) == ["it", "'s", "[", "pad", "]"]
    assert len(theirs) == OURS.size
