"""One shared BPE vocabulary with byte fallback: nothing is unknown, and every NFC-normalised text round-trips."""

import hashlib
import json
import re
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD, BOS, EOS = "<pad>", "<s>", "</s>"  # ids 0, 1 (the decoder's start) and 2
UNK = "<unk>"  # id 3 of a vocabulary of words
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]  # ids 3 to 258; the spelling that the byte decoder expects

# A piece is a word, a number, a run of other marks (each with the one space before it) or white space, so no token
# mixes letters with punctuation. That also keeps any merge from spelling "</s>" or "<0x41>". The joiners U+200C and
# U+200D belong to the word they shape (Persian, the Indic scripts).
PIECES = r" ?\p{L}[\p{L}\p{M}\u200C\u200D]*| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

CHARACTER_COVERAGE = 0.9995  # SentencePiece's default; rarer characters are spelled in bytes
MAX_TOKEN_CHARACTERS = 16  # SentencePiece's max_sentencepiece_length; keeps a repeated sentence from becoming a token
MIN_FREQUENCY = 2  # a token that was seen once cannot be learned

LINES_PER_BATCH = 10_000

MODES = ("src_lang", "tgt_lang", "language", "task", "predict_timestamps")  # of NLLB, mBART, Whisper


def train_tokenizer(texts: Iterable[str], vocab_size: int, *, model_max_length: int = 1024) -> PreTrainedTokenizerFast:
    """Trains one BPE vocabulary for both languages.

    Args:
        texts: Sentences of both languages. Read twice (characters, then tokens): pass something that can be
            iterated again, such as `PairTexts` or a list. An iterator that runs out is held in memory.
        vocab_size: Exact number of tokens, the 3 special and 256 byte tokens included. The paper uses about 37,000
            for English-German (section 5.1).
        model_max_length: Tokens above which the tokenizer warns (it doesn't cut unless told to).

    Returns:
        A plain `PreTrainedTokenizerFast`, which `AutoTokenizer.from_pretrained` loads without this package. It ends
        every text in `</s>`, and treats "</s>" inside a text as text.

    Raises:
        ValueError: `vocab_size` is below what the special tokens, bytes and characters take, or above what the
            texts can fill.

    Example:
        >>> tokenizer = train_tokenizer(["a small dog", "ein kleiner Hund"] * 100, vocab_size=280)
        >>> tokenizer("a dog", text_target="ein Hund")["labels"][-1] == tokenizer.eos_token_id
        True
    """
    if iter(texts) is texts:
        texts = list(texts)
    alphabet, rare = _split_characters(texts)
    fixed = [PAD, BOS, EOS, *BYTE_TOKENS]
    smallest = len(fixed) + len(alphabet)
    if vocab_size < smallest:
        raise ValueError(
            f"vocab_size={vocab_size:,} is below {smallest:,}, which 3 special tokens, 256 bytes and these texts' "
            f"{len(alphabet):,} characters take: use {smallest:,} or more"
        )
    vocabulary, merges = _learn_merges(texts, vocab_size, fixed, alphabet, rare)
    if len(vocabulary) != vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size:,} is above {len(vocabulary):,}, which is all that these texts can fill: "
            f"use {len(vocabulary):,} or less, or give more text"
        )
    return _assemble(vocabulary, merges, model_max_length)


def train_word_tokenizer(
    texts: Iterable[str], vocab_size: int, *, model_max_length: int = 1024
) -> PreTrainedTokenizerFast:
    """A vocabulary of whole words and marks, for classifying a few thousand texts, where pieces of rare words mislead.

    Args:
        texts: Sentences.
        vocab_size: Most tokens, the 4 special tokens included. A word that is seen once is never among them: it becomes
            "<unk>", as do all words that training doesn't show.
        model_max_length: As in `train_tokenizer`.

    Raises:
        ValueError: `vocab_size` has no room for a word.
    """
    if vocab_size < 5:
        raise ValueError(f"vocab_size={vocab_size}: 4 special tokens leave no room for a word: use more")
    backend = Tokenizer(models.WordLevel(vocab={}, unk_token=UNK))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()  # words, and runs of marks
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in (PAD, BOS, EOS, UNK)],
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return _finish(backend, model_max_length, unk_token=UNK)


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """Names what a tokenizer does to a text: equal digests, equal token ids.

    Args:
        tokenizer: Any tokenizer of the Transformers library. One without a `backend_tokenizer` is identified by the
            files that it saves.

    Returns:
        A SHA-256 in hex. Padding and truncation, which a call sets on the fly, don't count.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            return _sha256(*(file.read_bytes() for file in sorted(Path(folder).iterdir())))
    state = json.loads(backend.to_str())
    state |= {"padding": None, "truncation": None}
    return _sha256(
        json.dumps(state, sort_keys=True).encode(),
        repr((type(tokenizer).__name__, tokenizer.split_special_tokens)).encode(),
        repr([getattr(tokenizer, mode, None) for mode in MODES]).encode(),  # a call sets them in the backend
    )


def _sha256(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(texts)
    while batch := list(islice(iterator, LINES_PER_BATCH)):
        yield batch


def _split_characters(texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """The characters that cover CHARACTER_COVERAGE of the texts, most frequent first, and the rest."""
    counts = np.zeros(0x110000, dtype=np.int64)
    for batch in _batches(texts):
        text = unicodedata.normalize("NFC", " " + " ".join(batch))
        codes = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype=np.uint32)
        counts += np.bincount(codes, minlength=len(counts))
    seen = np.flatnonzero(counts)
    seen = seen[np.argsort(-counts[seen], kind="stable")]
    coverage = np.cumsum(counts[seen]) / max(counts.sum(), 1)
    kept = int(np.searchsorted(coverage, CHARACTER_COVERAGE)) + 1
    characters = [chr(code) for code in seen]
    return characters[:kept], characters[kept:]


def _learn_merges(
    texts: Iterable[str], vocab_size: int, fixed: list[str], alphabet: list[str], rare: list[str]
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    # Texts are cut at rare characters: the trainer would skip them and merge their neighbours.
    cut = re.compile("[" + "".join(map(re.escape, rare)) + "]") if rare else None

    def pieces() -> Iterator[list[str]]:
        for batch in _batches(texts):
            normal = [" " + unicodedata.normalize("NFC", text) for text in batch]
            yield [piece for text in normal for piece in cut.split(text)] if cut else normal

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=fixed,
        initial_alphabet=alphabet,
        min_frequency=MIN_FREQUENCY,
        max_token_length=MAX_TOKEN_CHARACTERS,
        show_progress=False,
    )
    learner.train_from_iterator(pieces(), trainer)
    model = json.loads(learner.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def _assemble(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], model_max_length: int
) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True))
    # The first word of a text gets the space that every other word has, so that it is the same token.
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend(" ")])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), "isolated")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (PAD, BOS, EOS)])
    return _finish(backend, model_max_length)


def _finish(backend: Tokenizer, model_max_length: int, **special_tokens: str) -> PreTrainedTokenizerFast:
    """What all our tokenizers do alike: end every text in `</s>`, pad on the right, take "</s>" in a text for text."""
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, backend.token_to_id(EOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=model_max_length,
        padding_side="right",
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # "</s>" in a text is text
        model_input_names=["input_ids", "attention_mask"],
        **special_tokens,
    )
