"""Texts to token ids: a fast word tokenizer that suits GloVe, or any ``tokenizer.json``.

Ids 0, 1 and 2 are padding, the unknown word and the separator, whatever the tokenizer.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from datransformer.data.errors import InputError

PADDING, UNKNOWN, SEPARATOR = 0, 1, 2
SPECIAL = ("[PAD]", "[UNK]", "[SEP]")

# What is written in several ways is written in one, before words are cut.
REPLACEMENTS = {"’": "'", "‘": "'", "“": '"', "”": '"', "–": "-", "—": "--", "…": "..."}
SPACES = r"[\p{Z}\p{Cc}\p{Cf}]"
ELLIPSIS = r"\.{2,}"

# A word character is a letter or digit of ASCII, an underscore, or any character beyond ASCII.
WORD = r"0-9a-z_\x{80}-\x{10ffff}"
CLITIC = rf"'(?:s|m|d|re|ve|ll)(?![{WORD}])"
NEGATION = rf"(?<=[{WORD}])n't(?![{WORD}])"
TOKEN = "|".join(
    (
        rf"(?<![{WORD}'])(?:[a-z]\.){{2,}}",  # u.s., e.g.
        NEGATION,  # do n't
        CLITIC,  # it 's
        # a word, with commas and points inside numbers and apostrophes inside names: 1,000.5, o'neill
        rf"(?:(?!{NEGATION})[{WORD}]|(?<=[0-9])[.,](?=[0-9])|(?<=[{WORD}])(?!{CLITIC})'(?=[{WORD}]))+",
        r"\.{2,}|-{2,}|`{2,}|'{2,}",
        r"[^\s]",
    )
)


class Encoded(NamedTuple):
    """Token ids of some texts, one after the other, and how many each text has."""

    ids: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]


class TextTokenizer(Protocol):
    """Cuts texts into tokens and numbers them."""

    @property
    def size(self) -> int:
        """How many ids there are."""
        ...

    @property
    def words(self) -> Sequence[str]:
        """The token of each id."""
        ...

    def encode(self, texts: pa.Array) -> Encoded:
        """Encode an Arrow array of strings."""
        ...

    def save(self, path: Path) -> None:
        """Write a ``tokenizer.json`` that Hugging Face's tokenizers read."""
        ...


class WordTokenizer:
    """Lower-case words and punctuation, cut as the Penn Treebank does, which is how GloVe was made: do n't, it 's.

    The definition is `TOKEN`, the regular expression that `save` writes into a ``tokenizer.json``; `encode` computes
    the same on whole columns of bytes, an order of magnitude faster, and is tested against it. Numbers with commas
    and points, abbreviations and names with an apostrophe stay whole; hyphenated words are cut at the hyphen. A run
    of characters beyond ASCII is a word, so languages written without spaces need a tokenizer of their own.

    Args:
        words: The vocabulary without the three special tokens. The id of a word is its place plus three.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words: Sequence[str] = [*SPECIAL, *words]
        self._lookup = pa.array([word.encode() for word in words], pa.binary())

    @classmethod
    def from_counts(
        cls, counts: Counter[str], further: Sequence[str] = (), *, limit: int, min_count: int
    ) -> "WordTokenizer":
        """Keep the ``limit`` most frequent words that occur at least ``min_count`` times; ties go by alphabet.

        Those of ``further`` come behind them as far as there is room, but for what no text is ever cut into.
        """
        kept = [word for word, count in counts.items() if count >= min_count]
        words = dict.fromkeys(sorted(kept, key=lambda word: (-counts[word], word))[:limit])
        if len(words) < limit:
            words |= dict.fromkeys(_whole(further))
        return cls(list(itertools.islice(words, limit)))

    @property
    def size(self) -> int:
        return len(self.words)

    def encode(self, texts: pa.Array) -> Encoded:
        tokens, lengths = cut_words(texts)
        ids = pc.fill_null(pc.index_in(tokens, value_set=self._lookup), UNKNOWN - len(SPECIAL))
        return Encoded(ids.to_numpy(zero_copy_only=False) + np.int32(len(SPECIAL)), lengths)

    def save(self, path: Path) -> None:
        path.write_text(_as_hugging_face(self.words).to_str(pretty=True), encoding="utf-8")


class FileTokenizer:
    """Any ``tokenizer.json``; its ids are moved up by three, and it adds no special tokens of its own.

    Args:
        tokenizer: The tokenizer as Hugging Face's library reads it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        names = {index: word for word, index in vocabulary.items()}
        if max(names, default=0) > 2 * len(names) + 1000:
            raise InputError(
                f"the tokenizer's ids go up to {max(names)} for {len(names)} tokens, expected them in a row"
            )
        self.words: Sequence[str] = [*SPECIAL, *(names.get(index, "") for index in range(max(names, default=-1) + 1))]

    @property
    def size(self) -> int:
        return len(self.words)

    def encode(self, texts: pa.Array) -> Encoded:
        try:
            encodings = self._tokenizer.encode_batch_fast(texts.to_pylist(), add_special_tokens=False)
        except Exception as error:  # the library raises bare Exceptions
            raise InputError(f"the tokenizer cannot encode the texts ({error})") from error
        lengths = np.fromiter((len(encoding) for encoding in encodings), np.int32, len(encodings))
        ids = np.fromiter((index for encoding in encodings for index in encoding.ids), np.int32, int(lengths.sum()))
        return Encoded(ids + np.int32(len(SPECIAL)), lengths)

    def save(self, path: Path) -> None:
        path.write_text(self._tokenizer.to_str(pretty=True), encoding="utf-8")


def load_tokenizer(path: Path) -> TextTokenizer:
    """Read a ``tokenizer.json``; one that `WordTokenizer` wrote takes the fast way again."""
    try:
        content = path.read_text(encoding="utf-8")
        fields: Any = json.loads(content)
        tokenizer = Tokenizer.from_str(content)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file, expected a tokenizer.json") from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exceptions, and panics that are not even those
        raise InputError(f"{path}: not a tokenizer.json that can be read ({error})") from None
    if fields.get("model", {}).get("type") == "WordLevel":
        vocabulary = fields["model"]["vocab"]
        words = sorted(vocabulary, key=vocabulary.__getitem__)
        rules = json.loads(_as_hugging_face(words[:3]).to_str())
        same = all(fields.get(part) == rules[part] for part in ("normalizer", "pre_tokenizer"))
        if same and tuple(words[:3]) == SPECIAL and sorted(vocabulary.values()) == list(range(len(words))):
            return WordTokenizer(words[3:])
    return FileTokenizer(tokenizer)


def _whole(words: Sequence[str]) -> list[str]:
    """Those of ``words`` that are one token and written as tokens are."""
    tokens, lengths = cut_words(pa.array(words, pa.string()))
    alone = lengths == 1
    cut = tokens.filter(pa.array(np.repeat(alone, lengths))).to_pylist()
    return [word for word, token in zip(itertools.compress(words, alone), cut, strict=True) if word.encode() == token]


def count_words(batches: Iterable[pa.Array]) -> Counter[str]:
    """How often each word occurs in some columns of text."""
    counts: Counter[bytes] = Counter()
    for texts in batches:
        tokens, _ = cut_words(texts)
        words, numbers = pc.value_counts(tokens).flatten()
        for word, number in zip(words.to_pylist(), numbers.to_pylist(), strict=True):
            counts[word] += number
    return Counter({word.decode(): number for word, number in counts.items()})


def cut_words(texts: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int32]]:
    """Cut texts by the rules of `TOKEN`: the tokens, as binary, and how many each text has.

    Every rule is a decision whether a byte belongs to the token of the byte before it, taken for the whole column at
    once. None of them looks across a space, and each text ends with one, so that none looks into the next text.
    """
    column = normalise(texts)
    offsets = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, 8 * column.offset)
    padded = np.full(offsets[-1] - offsets[0] + 5, 32, np.uint8)
    padded[2:-3] = np.frombuffer(column.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    size = len(padded) - 5
    word_like = _WORD_BYTES[padded]
    here, before = padded[2:-3], padded[1:-4]
    one, two = padded[3:-2], padded[4:-1]
    word, word_before = word_like[2:-3], word_like[1:-4]
    word_one, word_two, word_three = word_like[3:-2], word_like[4:-1], word_like[5:]

    apostrophe = here == ord("'")
    short = ((one == ord("s")) | (one == ord("m")) | (one == ord("d"))) & ~word_two
    long = ((one == ord("r")) | (one == ord("v"))) & (two == ord("e")) | (one == ord("l")) & (two == ord("l"))
    clitic = apostrophe & (before != ord("'")) & (short | long & ~word_three)
    negation = word_before & (here == ord("n")) & (one == ord("'")) & (two == ord("t")) & ~word_three
    in_number = ((here == ord(".")) | (here == ord(","))) & _DIGIT_BYTES[before] & _DIGIT_BYTES[one]
    in_name = apostrophe & word_before & word_one & ~clitic

    inside = word | in_number | in_name
    ended = _back(clitic & short, 2) | _back(clitic & ~short, 3) | _back(negation, 3)  # 's'a is 's and 'a
    joined = inside & _back(inside) & ~negation & ~ended
    joined |= _back(clitic)
    pair = _LETTER_BYTES[here] & (one == ord(".")) & ~word_before & (before != ord("'"))  # u.
    abbreviation = pair & (_back(pair, 2) | _back(pair[::-1], 2)[::-1])  # u. with another before or behind it
    point = _back(abbreviation)
    joined |= point | abbreviation & _back(pair, 2)
    joined |= _RUN_BYTES[here] & (here == before) & ~_back(point) & ~clitic

    space = (here <= 32) | (here == 127)  # the control characters of ASCII
    starts = np.flatnonzero(~joined & ~space | _back(~space) & space)  # of tokens, and of what lies between them
    segments = pa.Array.from_buffers(
        pa.large_binary(),
        len(starts),
        [None, pa.py_buffer(np.append(starts, size)), pa.py_buffer(np.ascontiguousarray(here))],
    )
    is_token = ~space[starts]
    lengths = np.diff(np.searchsorted(starts[is_token], offsets)).astype(np.int32)
    return segments.filter(pa.array(is_token)).cast(pa.binary()), lengths


def _back(flags: npt.NDArray[np.bool_], steps: int = 1) -> npt.NDArray[np.bool_]:
    """Whether the byte ``steps`` before has the flag."""
    moved = np.zeros_like(flags)
    moved[steps:] = flags[:-steps]
    return moved


def _bytes_in(characters: Iterable[int]) -> npt.NDArray[np.bool_]:
    table = np.zeros(256, bool)
    table[list(characters)] = True
    return table


_LETTER_BYTES = _bytes_in(range(ord("a"), ord("z") + 1))
_DIGIT_BYTES = _bytes_in(range(ord("0"), ord("9") + 1))
_WORD_BYTES = _LETTER_BYTES | _DIGIT_BYTES | _bytes_in([ord("_"), *range(128, 256)])
_RUN_BYTES = _bytes_in(map(ord, ".-`'"))


def normalise(texts: pa.Array) -> pa.Array:
    """Lower case, one form of quotes, dashes and dots, plain spaces, and a space at the end."""
    # The join comes first because it writes a column of its own: pyarrow 26 lower-cases a cast slice wrongly.
    ended = pc.binary_join_element_wise(texts, *(pa.scalar(text, texts.type) for text in ("", " ")))
    column = ended.cast(pa.large_string())
    content = column.buffers()[2]
    if content is None or np.frombuffer(content, np.uint8).max(initial=0) < 128:
        column = pc.ascii_lower(column)
    else:
        column = pc.utf8_lower(column)
        for old, new in REPLACEMENTS.items():
            column = pc.replace_substring(column, old, new)
        column = pc.replace_substring_regex(column, SPACES, " ")
    return pc.replace_substring_regex(column, ELLIPSIS, "...")


def _as_hugging_face(words: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=SPECIAL[UNKNOWN])
    )
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Lowercase(),
            *(normalizers.Replace(old, new) for old, new in REPLACEMENTS.items()),
            normalizers.Replace(Regex(SPACES), " "),
            normalizers.Replace(Regex(ELLIPSIS), "..."),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN), "removed", invert=True)
    return tokenizer
