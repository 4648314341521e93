"""The tokenizer of a run as one of transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, normalizers
from tokenizers.processors import TemplateProcessing
from transformers import BatchEncoding, PreTrainedTokenizerFast

from datransformer.data.errors import InputError
from datransformer.data.tokenizer import SEPARATOR, SPECIAL, WordTokenizer, load_tokenizer

# A character that no word has, for `SPACES` makes a space of it.
NOTHING = "\0"


class DATransformerTokenizer(PreTrainedTokenizerFast):
    """Any fast tokenizer. Unless told how to truncate, it cuts each text at ``model_max_length``, as a run does."""

    model_input_names = ("input_ids", "attention_mask")

    def __call__(self, text: Any = None, text_pair: Any = None, *args: Any, **kwargs: Any) -> BatchEncoding:
        """As every tokenizer of transformers; the empty text is one unknown word, as it is in a run."""
        if not kwargs.get("is_split_into_words"):
            text, text_pair = _map(text, _not_empty), _map(text_pair, _not_empty)
        if "truncation" not in kwargs and "max_length" not in kwargs:
            if text_pair is None:
                kwargs["truncation"] = True
            else:  # transformers would cut the pair, not its texts
                self.backend_tokenizer.no_truncation()  # what the call before has left there
                text, text_pair = _map(text, self._cut), _map(text_pair, self._cut)
        return super().__call__(text, text_pair, *args, **kwargs)

    def _eventual_warn_about_too_long_sequence(self, ids: list[int], max_length: int | None, verbose: bool) -> None:
        """Say nothing: each text of a pair is cut, and the two together may be longer than one may be."""

    def _cut(self, text: str) -> str:
        offsets = self.backend_tokenizer.encode(text, add_special_tokens=False).offsets
        return text if len(offsets) <= self.model_max_length else text[: offsets[self.model_max_length - 1][1]]


def _not_empty(text: str) -> str:
    return text or " "


def _map(texts: Any, function: Callable[[str], str]) -> Any:
    """``function`` of a text, or of each text of a list."""
    if isinstance(texts, list | tuple):
        return [_map(text, function) for text in texts]
    return function(texts) if isinstance(texts, str) else texts


def convert_tokenizer(path: Path, max_length: int) -> tuple[DATransformerTokenizer, int]:
    """The tokenizer of a run's ``tokenizer.json``, and how many of the run's ids come last in it.

    A word tokenizer keeps its ids. Any other has the ids of its file, without the run's moving up by three, so that
    padding, unknown word and separator, the run's ids 0 to 2, are its last three.

    Args:
        path: The file.
        max_length: Where a text is cut.
    """
    own = load_tokenizer(path)
    tokenizer = Tokenizer.from_file(str(path))
    words = isinstance(own, WordTokenizer)
    names = list(SPECIAL)
    if words:
        # Arrow's lower case of İ is i, that of tokenizers an i with a dot of its own.
        dotted, empty = normalizers.Replace("İ", "i"), normalizers.Replace(Regex(r"\A\s*\z"), NOTHING)
        tokenizer.normalizer = normalizers.Sequence([dotted, tokenizer.normalizer, empty])
    else:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        for place, name in enumerate(names):
            while tokenizer.token_to_id(name) is not None:
                name = f"[{name}]"
            names[place] = name
        tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
        ids = [tokenizer.token_to_id(name) for name in names]
        if ids != list(range(own.size - len(SPECIAL), own.size)):
            raise InputError(f"{path}: the tokenizer's ids have gaps, expected them in a row")
    separator = names[SEPARATOR]
    tokenizer.post_processor = TemplateProcessing(
        single="$A:0",
        pair=f"$A:0 {separator}:0 $B:0",
        special_tokens=[(separator, tokenizer.token_to_id(separator))],
    )
    converted = DATransformerTokenizer(
        tokenizer_object=tokenizer,
        pad_token=names[0],
        unk_token=names[1],
        sep_token=names[2],
        model_max_length=max_length,
        split_special_tokens=words,  # "[PAD]" in a text is three words
        clean_up_tokenization_spaces=False,
    )
    return converted, 0 if words else len(SPECIAL)
