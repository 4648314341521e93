"""How files become token ids."""

from dataclasses import dataclass

from datransformer.ops.checks import check_choice, check_positive_int

BAD_ROWS = ("stop", "skip")
MOST = 100_000_000


@dataclass(frozen=True)
class DataConfig:
    """How a file is read, cut into tokens and cut to size.

    Args:
        text_columns: Columns that hold the text; several are joined with a space.
        text_pair_column: Column of the second text of a pair.
        label_column: Column of the label or rating.
        format: A key of `FORMATS`, or ``auto``: by the file's name.
        bad_rows: ``stop`` at the first row that cannot be used, or ``skip`` such rows and count them.
        dev_share: Share of the training rows held out for development where no file is given for it.
        split_seed: Which rows those are.
        min_examples_per_class: A class with fewer training examples is an error: most often it is a typing mistake.
        tokenizer: ``words``, or a ``tokenizer.json``.
        vocabulary: How many words are kept at most, the most frequent ones.
        min_count: Words that occur less often in training are unknown.
        vectors: A file of word vectors, or None to start from random ones.
        vector_words: Whether other words of ``vectors`` are in the vocabulary too, behind those of training and in the
            order of the file, as far as there is room. Nothing trains those that training does not have, and
            nothing but ``train.weight_decay`` moves them.
        max_length: Tokens of a text; what lies behind is cut off and counted.
        max_sentences: Sentences of a document, likewise.
        max_sentence_length: Tokens of a sentence; a longer one goes on as the next sentence.
        max_title_length: Tokens of a news title.
        max_history: Clicked news of a user; the newest are kept.
    """

    text_columns: tuple[str, ...] = ("text",)
    text_pair_column: str | None = None
    label_column: str = "label"
    format: str = "auto"
    bad_rows: str = "stop"
    dev_share: float = 0.1
    split_seed: int = 0
    min_examples_per_class: int = 2
    tokenizer: str = "words"
    vocabulary: int = 100_000
    min_count: int = 1
    vectors: str | None = None
    vector_words: bool = False
    max_length: int = 256
    max_sentences: int = 40
    max_sentence_length: int = 50
    max_title_length: int = 30
    max_history: int = 50

    def __post_init__(self) -> None:
        check_choice("bad_rows", self.bad_rows, BAD_ROWS)
        if not self.text_columns:
            raise ValueError("text_columns: got none, expected at least one")
        if not 0 < self.dev_share < 1:
            raise ValueError(f"dev_share: got {self.dev_share}, expected a number between 0 and 1")
        if self.split_seed < 0:
            raise ValueError(f"split_seed: got {self.split_seed}, expected 0 or more")
        if self.vector_words and self.vectors is None:
            raise ValueError(
                "vector_words: got true, expected data.vectors, a file of word vectors (--vectors), with it"
            )
        if self.vector_words and self.tokenizer != "words":
            raise ValueError("vector_words: got true, expected no data.tokenizer (--tokenizer), whose tokens are fixed")
        for name in ("vocabulary", "max_length", "max_sentences", "max_sentence_length", "max_title_length"):
            if getattr(self, name) > MOST:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at most {MOST:,}")
        for name in ("vocabulary", "min_count", "min_examples_per_class", "max_length", "max_sentences"):
            check_positive_int(name, getattr(self, name))
        for name in ("max_sentence_length", "max_title_length", "max_history"):
            check_positive_int(name, getattr(self, name))
