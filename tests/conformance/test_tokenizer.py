"""The library's common tokenizer tests on a tokenizer that `train_tokenizer` has trained."""

import tempfile
import unittest
from functools import partial
from typing import Any
from unittest import mock

from tests.test_tokenization_common import TokenizerTesterMixin
from tests.test_tokenizers_backend_mixin import TokenizersBackendTesterMixin
from tokenizers import Tokenizer, normalizers
from transformers import PreTrainedTokenizerFast

from modeling_vanilla.data import train_tokenizer

TEXTS = [
    "This is a small text, and that one is a text that is longer than the small one.",
    "Hello, how are you doing? The following string should be properly encoded.",
    "Das ist ein kleiner Text, und der andere ist ein Text, der länger als der kleine ist.",
]


class TrainedTokenizer:
    """Trains the tokenizer before the tests of a class."""

    tokenizer_class = rust_tokenizer_class = PreTrainedTokenizerFast

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        train_tokenizer(TEXTS * 2, vocab_size=360).save_pretrained(folder.name)
        cls.from_pretrained_id = [folder.name]
        super().setUpClass()


class TokenizerTest(TrainedTokenizer, TokenizerTesterMixin, unittest.TestCase):
    # The test rebuilds a tokenizer from vocabulary and merges by the code of its class; a plain one has no such code.
    test_tokenizer_from_extractor = False

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        text = cls.integration_test_input_string
        alone = Tokenizer.from_file(f"{cls.tmpdirname}/tokenizer.json")  # without the library around it
        alone.encode_special_tokens = True
        expected = alone.encode(text, add_special_tokens=False)
        cls.integration_expected_tokens, cls.integration_expected_token_ids = expected.tokens, expected.ids
        cls.integration_expected_decoded_text = text

    def test_tokenize_special_tokens(self) -> None:
        # Our tokenizer takes special tokens in a text for text, unless it is told otherwise: here it is.
        get_tokenizer = partial(self.get_tokenizer, split_special_tokens=False)
        with mock.patch.object(type(self), "get_tokenizer", get_tokenizer):
            super().test_tokenize_special_tokens()


class TokenizersBackendTest(TrainedTokenizer, TokenizersBackendTesterMixin, unittest.TestCase):
    def without_prefix(self, **kwargs: Any) -> PreTrainedTokenizerFast:
        # Two tests expect a decoded text to look as the normalizer left it. Ours puts a space in front, which the
        # decoder takes away again; without the space both give the text back.
        tokenizer = self.rust_tokenizer_class.from_pretrained(self.tmpdirname, **kwargs)
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
        return tokenizer

    def test_training_new_tokenizer(self) -> None:
        with mock.patch.object(type(self), "get_rust_tokenizer", self.without_prefix):
            super().test_training_new_tokenizer()

    def test_training_new_tokenizer_with_special_tokens_change(self) -> None:
        with mock.patch.object(type(self), "get_rust_tokenizer", self.without_prefix):
            super().test_training_new_tokenizer_with_special_tokens_change()

    def test_a_new_tokenizer_gives_texts_back(self) -> None:
        new = self.get_rust_tokenizer().train_new_from_iterator([TEXTS], 400)
        for text in TEXTS:
            assert new.decode(new(text)["input_ids"], skip_special_tokens=True) == text
