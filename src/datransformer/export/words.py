"""The word tokenizer as data that a few lines in any language can follow."""

import re
from typing import Any

import pyarrow as pa

from datransformer.data.tokenizer import ELLIPSIS, SPECIAL, TOKEN, WordTokenizer, normalise


def word_rules(tokenizer: WordTokenizer) -> dict[str, Any]:
    """What to do to a text, in this order, and the id of each word.

    Returns:
        ``characters``: each of these becomes another, or several: lower case, one form of quotes and dashes, spaces.
        ``dots``: a regular expression; what it finds becomes ``...``.
        ``token``: a regular expression that finds the words one after the other.
        ``ids``: of the words; any other has the id of the unknown word.
    """
    token = TOKEN.replace(r"\x{80}-\x{10ffff}", "\x80-\U0010ffff")  # what Python has for Oniguruma's escapes
    re.compile(token)
    return {
        "characters": _characters(),
        "dots": ELLIPSIS,
        "token": token,
        "ids": {word: place for place, word in enumerate(tokenizer.words) if place >= len(SPECIAL)},
    }


def _characters() -> dict[str, str]:
    """What `normalise` makes of every character that it changes; it looks at one at a time, but for dots in a row."""
    every = [chr(code) for code in (*range(1, 0xD800), *range(0xE000, 0x110000))]  # without halves of characters
    changed = normalise(pa.array(every, pa.string())).to_pylist()
    return {old: new[:-1] for old, new in zip(every, changed, strict=True) if new[:-1] != old}  # each ends in a space
