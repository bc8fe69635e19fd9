"""The generation table: every way of decoding, with every cache, on every kind of batch, against plain loops.

`pytest -v tests/test_generation_table.py` prints it, a cell a line: mode, cache, padding or input, positions.

Two columns are limited by the library. Offloaded caches move between a GPU and the CPU with CUDA's streams, so their
cells skip where there is no CUDA. Quantised caches are made by generate() for language models alone, but an
encoder-decoder takes one that was made by hand. They round keys and values: those of fp8 are compared with a loop that
rounds in the same way, the others (which need hqq or optimum-quanto) come only close to one that doesn't.

Shapes: `B` sentences, `S` source and `T` target positions, `V` vocabulary.
"""

import contextlib
import copy
import functools
import itertools
import random
import threading

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, TextIteratorStreamer, TextStreamer
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, QuantizedCache

from modeling_vanilla import VanillaForCausalLM
from tests.plain_decoding import (
    EOS,
    NO_REPEATS,
    PAD,
    START,
    best_only,
    each,
    forced,
    less_of_what_was_said,
    never,
    next_log_probs,
    next_logits,
    no_end_before,
    no_repeated_ngram,
    no_repeats,
    padded_left,
    plain_beams,
    plain_greedy,
    plain_sampling,
    plain_speculation,
    ruled,
    sources,
    tempered,
    trimmed,
)

NEW, BEAMS = 9, 3  # tokens, and beams

# Each has something else besides that a cache might get wrong.
ENCODINGS = {
    "sinusoidal": {"tied_embeddings": "none", "decoder_vocab_size": 23, "norm_position": "pre"},
    "learned": {"position_offset": 2, "d_k": 3, "d_v": 5},
    "rotary": {"encoder_layers": 1, "decoder_layers": 3, "norm_position": "pre"},
    "alibi": {"encoder_attention_heads": 4, "decoder_attention_heads": 8, "encoder_layers": 3},
}
CACHES = {
    "none": {"use_cache": False},
    "dynamic": {"cache_implementation": "dynamic"},
    "static": {"cache_implementation": "static"},
    "offloaded": {"cache_implementation": "offloaded"},
    "offloaded_static": {"cache_implementation": "offloaded_static", "disable_compile": True},
}
ON_THE_CPU = ["none", "dynamic", "static"]
WARPED = {"do_sample": True, "temperature": 1.3, "top_k": 12}
MODES = {
    "greedy": {},
    "sampling": WARPED,
    "n_samples": WARPED | {"num_return_sequences": 2},
    "beam": {"num_beams": BEAMS, "early_stopping": False, "length_penalty": 0.7},
    "n_best": {"num_beams": BEAMS, "early_stopping": "never", "length_penalty": -0.5, "num_return_sequences": BEAMS},
    "beam_sampling": WARPED | {"num_beams": BEAMS, "early_stopping": True},
}
BEAM_SETTINGS = ("early_stopping", "length_penalty")
RULES = (no_repeats, never([PAD]))  # the latter for what pads prefixes: no repeats forbids it in padded rows anyhow
RULE_SETTINGS = NO_REPEATS | {"bad_words_ids": [[PAD]]}

RAGGED, EVEN = (5, 1, 3), (4, 4, 4)
PADDINGS = {"unpadded": (EVEN, False), "right": (RAGGED, False), "left": (RAGGED, True)}
STARTS = [[START]] * 3
PREFIXES = [[START, 7, 4], [START, 9, 11], [START, 5, 6]]
RAGGED_PREFIXES = [[START, 7], [START], [START, 5, 6, 13]]
PROMPTS = [[5, 9, 4, 7], [11], [6, 3, 8]]


def plain(mode: str, model, batch, prefixes, rules=RULES) -> list[list[int]]:
    """What the mode's plain loop says, a row for each sequence to return."""
    settings, n = MODES[mode], MODES[mode].get("num_return_sequences", 1)
    sample = settings.get("do_sample", False)
    rules = (*rules, tempered(1.3), best_only(12)) if sample else rules
    torch.manual_seed(1)
    if "num_beams" in settings:
        given = {name: settings[name] for name in BEAM_SETTINGS if name in settings}
        finished = plain_beams(model, batch, BEAMS, NEW, prefixes=prefixes, rules=rules, sample=sample, **given)
        return [sequence for beams in finished for _, sequence in beams[:n]]
    if sample:
        batch, prefixes = ([x for x in xs for _ in range(n)] for xs in (batch, prefixes))
        return plain_sampling(model, batch, NEW, prefixes, rules)
    return [plain_greedy(model, source, NEW, prefix, rules) for source, prefix in zip(batch, prefixes, strict=True)]


def generated(mode: str, model, batch: dict, prefixes, **settings) -> list[list[int]]:
    """What generate() says, without padding."""
    torch.manual_seed(1)
    rows = trimmed(model.generate(**batch, max_new_tokens=NEW, **MODES[mode], **settings))
    n = len(rows) // len(prefixes)
    longest = max(map(len, prefixes))
    return [row[longest - len(prefixes[i // n]) :] for i, row in enumerate(rows)]


@functools.cache
def batch_of(lengths: tuple[int, ...], left: bool = False) -> dict[str, torch.Tensor]:
    """The same sentences on every call."""
    torch.manual_seed(5)
    return sources(lengths, left=left)


@pytest.fixture(scope="module")
def model_with(lively):
    """The model with a kind of positions, the same on every call. What was said before matters to it."""

    def build(encoding: str):
        model = lively(3, position_encoding=encoding, **ENCODINGS[encoding])
        with torch.no_grad():
            for layer in model.model.decoder.layers:
                layer.self_attn.v_proj.weight *= 3
            model.lm_head.bias[EOS] -= 0.7
        return model

    return functools.cache(build)


@pytest.fixture(scope="module")
def lm_with(tiny_config):
    """As `model_with`, a language model."""

    def build(encoding: str, **changes) -> VanillaForCausalLM:
        torch.manual_seed(4)
        changes = ENCODINGS[encoding] | {"output_bias": True, "tied_embeddings": "none"} | changes
        model = VanillaForCausalLM(tiny_config(position_encoding=encoding, **changes)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias") or "layer_norm" in name:
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
                elif "q_proj" in name or "v_proj" in name:
                    parameter *= 3
        return model

    return functools.cache(build)


@pytest.fixture(scope="module")
def expected(model_with):
    """The plain loops' rows. They are the same for every cache and padding, and so computed once."""

    @functools.cache
    def rows(mode: str, encoding: str, lengths=RAGGED, prefixes: str = "STARTS") -> list[list[int]]:
        return plain(mode, model_with(encoding), list(each(batch_of(lengths))), globals()[prefixes])

    return rows


@contextlib.contextmanager
def counted(model):
    """A list that grows by one with each call of the model."""
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    yield calls
    handle.remove()


def cells(rows, offloaded_with: tuple[str, ...]) -> list:
    """Every mode with every cache in each of these rows; the offloaded ones, which need a GPU, in one of them."""
    needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="offloaded caches use CUDA's streams")
    params = []
    for mode, cache, row in itertools.product(MODES, CACHES, rows):
        if cache in ON_THE_CPU or row == offloaded_with:
            marks = () if cache in ON_THE_CPU else needs_cuda
            params.append(pytest.param(mode, cache, *row, id="-".join((mode, cache, *row)), marks=marks))
    return params


def placed(cache: str, model, batch: dict):
    """Model and batch where the cache can be."""
    if cache in ON_THE_CPU:
        return model, batch
    return copy.deepcopy(model).cuda(), {name: x.cuda() for name, x in batch.items()}


every_mode = pytest.mark.parametrize("mode", MODES)
every_cache = pytest.mark.parametrize("cache", ON_THE_CPU)
every_encoding = pytest.mark.parametrize("encoding", ENCODINGS)


# --- encoder-decoder: mode, cache, padding, positions ---


PADDED = [("unpadded", "sinusoidal"), *itertools.product(("right", "left"), ENCODINGS)]


@pytest.mark.parametrize(("mode", "cache", "padding", "encoding"), cells(PADDED, offloaded_with=("left", "sinusoidal")))
def test_translation(model_with, expected, mode, cache, padding, encoding):
    lengths, left = PADDINGS[padding]
    model, batch = placed(cache, model_with(encoding), batch_of(lengths, left))
    rows = generated(mode, model, batch, STARTS, **RULE_SETTINGS, **CACHES[cache])
    if cache in ON_THE_CPU:
        assert rows == expected(mode, encoding, lengths)
    else:  # draws on a GPU are others
        assert rows == plain(mode, model, list(each(batch)), STARTS)


GIVEN = [  # what each kind of positions may be sensitive to
    ("prefix", "sinusoidal"),
    ("prefix", "rotary"),
    *(("left_padded_prefix", encoding) for encoding in ENCODINGS),
    ("inputs_embeds", "learned"),
    ("encoder_outputs", "alibi"),
]


@pytest.mark.parametrize(("given", "encoding"), GIVEN, ids=map("-".join, GIVEN))
@every_cache
@pytest.mark.parametrize("mode", ["greedy", "sampling", "beam", "beam_sampling"])
def test_translation_with_other_inputs(model_with, expected, mode, cache, given, encoding):
    model, batch, name = model_with(encoding), dict(batch_of(RAGGED, True)), "STARTS"
    if given == "prefix":
        name, batch["decoder_input_ids"] = "PREFIXES", torch.tensor(PREFIXES)
    elif given == "left_padded_prefix":
        name = "RAGGED_PREFIXES"
        batch["decoder_input_ids"], batch["decoder_attention_mask"] = padded_left(RAGGED_PREFIXES)
    elif given == "inputs_embeds":
        batch["inputs_embeds"] = model.get_input_embeddings()(batch.pop("input_ids"))
    else:
        batch["encoder_outputs"] = model.get_encoder()(batch.pop("input_ids"), batch["attention_mask"])
    rows = generated(mode, model, batch, globals()[name], **RULE_SETTINGS, **CACHES[cache])
    assert rows == expected(mode, encoding, RAGGED, name)


@every_mode
def test_the_tables_models_say_different_things(expected, mode):
    """Or the comparisons would compare little: different rows for different sentences, ended and unended ones."""
    rows = [row for encoding in ENCODINGS for lengths in (RAGGED, EVEN) for row in expected(mode, encoding, lengths)]
    assert len({tuple(row) for row in rows}) > len(rows) * 3 / 4
    assert 0 < sum(row[-1] == EOS for row in rows) < len(rows)
    assert len({token for row in rows for token in row}) > 12


# --- scores ---


@every_cache
@every_encoding
def test_output_scores_are_the_plain_loops(model_with, cache, encoding):
    model, batch = model_with(encoding), batch_of(RAGGED, True)
    settings = {"max_new_tokens": NEW, "return_dict_in_generate": True} | RULE_SETTINGS | CACHES[cache]
    output = model.generate(**batch, **settings, output_scores=True, output_logits=True)
    rows = trimmed(output.sequences)
    assert len(output.scores) == max(map(len, rows)) - 1
    for i, (source, row) in enumerate(zip(each(batch), rows, strict=True)):
        for n in range(1, len(row)):
            logits = next_logits(model, source, [row[:n]])
            torch.testing.assert_close(output.logits[n - 1][i], logits[0], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(
                output.scores[n - 1][i], ruled(RULES, [row[:n]], logits)[0], rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("target", [20, 13, 31], ids="target_vocabulary_{}".format)
@pytest.mark.parametrize("cache", ["none", "dynamic"])
@pytest.mark.parametrize("mode", ["greedy", "n_best"])
def test_transition_scores_are_the_tokens_log_probabilities(lively, mode, cache, target):
    """The source has 20 words; the library's function must not take that for the width of the scores."""
    model = lively(6, tied_embeddings="none", decoder_vocab_size=target)
    batch = batch_of(RAGGED, True)
    output = model.generate(
        **batch,
        max_new_tokens=NEW,
        return_dict_in_generate=True,
        output_scores=True,
        **MODES[mode],
        **RULE_SETTINGS,
        **CACHES[cache],
    )
    beams = output.get("beam_indices")
    scores = model.compute_transition_scores(output.sequences, output.scores, beams, normalize_logits=mode == "greedy")
    rows = trimmed(output.sequences)
    n = len(rows) // 3
    for i, row in enumerate(rows):
        source = list(each(batch))[i // n]
        prefixes = [row[:length] for length in range(1, len(row))]
        steps = [next_log_probs(model, source, [prefix], RULES)[0] for prefix in prefixes]
        if mode == "greedy":  # rules come before the softmax
            steps = [step.log_softmax(-1) for step in steps]
        log_probs = torch.stack([step[token] for step, token in zip(steps, row[1:], strict=True)])
        torch.testing.assert_close(scores[i, : len(row) - 1], log_probs, rtol=1e-5, atol=1e-5)
        if beams is not None:
            assert (scores[i, len(row) - 1 :] == 0).all()
            total = log_probs.sum() / len(log_probs) ** MODES[mode]["length_penalty"]
            torch.testing.assert_close(output.sequences_scores[i], total, rtol=1e-5, atol=1e-5)


# --- logits processors ---

BAD_WORDS = [[3], [15, 9], [START, 5]]
PROCESSORS = {  # what generate() is told, and the same as rules, of which the last is the one in question
    "repetition_penalty": ({"repetition_penalty": 2.5}, [less_of_what_was_said(2.5)]),
    "no_repeat_ngram": ({"no_repeat_ngram_size": 2}, [no_repeated_ngram(2)]),
    "bad_words": (NO_REPEATS | {"bad_words_ids": BAD_WORDS}, [no_repeats, never(*BAD_WORDS)]),
    "min_new_tokens": (NO_REPEATS | {"min_new_tokens": 6}, [no_repeats, no_end_before(7)]),
    "forced_bos": (NO_REPEATS | {"forced_bos_token_id": 8}, [no_repeats, forced(8, 1)]),
    "forced_eos": ({"forced_eos_token_id": EOS}, [forced(EOS, NEW)]),
}
PROCESSORS["all"] = (
    dict(itertools.chain.from_iterable(settings.items() for settings, _ in PROCESSORS.values())),
    [rules[-1] for _, rules in PROCESSORS.values()],
)
PROCESSORS["all"][0]["no_repeat_ngram_size"] = 2


@pytest.fixture(scope="module")
def ending(lively):
    """A model that is soon at its end, unless it is told not to be."""
    model = lively(2, decoder_layers=3, tied_embeddings="none")
    with torch.no_grad():
        model.lm_head.bias[EOS] += 1.0
    return model


@pytest.fixture(scope="module")
def expected_under_rules(ending):
    batch = list(each(batch_of(RAGGED)))
    return functools.cache(lambda mode, *rules: plain(mode, ending, batch, STARTS, rules))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("mode", ["greedy", "sampling", "beam", "beam_sampling"])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_logits_processors(ending, expected_under_rules, processor, mode, cache):
    settings, rules = PROCESSORS[processor]
    rows = generated(mode, ending, batch_of(RAGGED, True), STARTS, **settings, **CACHES[cache])
    assert rows == expected_under_rules(mode, *rules)


@pytest.mark.parametrize("mode", ["greedy", "beam"])
@pytest.mark.parametrize("processor", PROCESSORS)
def test_each_processor_changes_what_is_said(expected_under_rules, processor, mode):
    """Or the comparisons above would compare nothing."""
    rules = PROCESSORS[processor][1]
    others = [] if processor == "all" else rules[:-1]
    assert expected_under_rules(mode, *rules) != expected_under_rules(mode, *others)


# --- drafts: assisted and prompt-lookup decoding, of one sentence at a time ---


def test_drafts_need_a_dynamic_cache_in_an_encoder_decoder(model_with):
    """The library takes back tokens that were not kept from a dynamic cache alone; a language model's may be static."""
    with pytest.raises(TypeError, match="only defined for dynamic cache"):
        model_with("alibi").generate(**batch_of((4,)), prompt_lookup_num_tokens=2, **CACHES["static"], max_new_tokens=4)


@pytest.mark.parametrize("assistant", ["itself", "smaller"])
@every_encoding
def test_assisted_greedy(lively, model_with, encoding, assistant):
    model = helper = model_with(encoding)
    if assistant == "smaller":
        helper = lively(
            4, position_encoding=encoding, **ENCODINGS[encoding] | {"encoder_layers": 1, "decoder_layers": 1}
        )
    for source in each(batch_of(RAGGED)):
        row = plain_greedy(model, source, NEW)
        output = model.generate(**source, assistant_model=helper, max_new_tokens=NEW, **NO_REPEATS)
        assert output.tolist() == [row]


@every_encoding
def test_an_assistant_that_is_the_model_is_right_every_time(model_with, encoding):
    """So that a call brings the three tokens that were drafted, and one more."""
    model = model_with(encoding)
    helper = copy.deepcopy(model)
    helper.generation_config.num_assistant_tokens = 3
    helper.generation_config.num_assistant_tokens_schedule = "constant"
    helper.generation_config.assistant_confidence_threshold = 0.0
    source = next(each(batch_of((5,))))
    settings = {"max_new_tokens": 16, "min_new_tokens": 16} | NO_REPEATS
    with counted(model) as calls:
        row = model.generate(**source, assistant_model=helper, **settings)[0].tolist()
    assert row == plain_greedy(model, source, 16, rules=[no_repeats, no_end_before(17)])
    assert len(calls) == 4


@pytest.mark.parametrize("seed", range(4))
@every_encoding
def test_assisted_sampling(lively, model_with, encoding, seed):
    model = model_with(encoding)
    helper = lively(4, position_encoding=encoding, **ENCODINGS[encoding] | {"decoder_layers": 1})
    helper.generation_config.num_assistant_tokens = 3
    helper.generation_config.num_assistant_tokens_schedule = "constant"
    helper.generation_config.assistant_confidence_threshold = 0.0
    source = next(each(batch_of(RAGGED)))
    torch.manual_seed(seed)
    row = plain_speculation(model, helper, source, NEW, num_drafted=3)
    torch.manual_seed(seed)
    settings = {"do_sample": True, "top_k": 0, "max_new_tokens": NEW}
    assert model.generate(**source, assistant_model=helper, **settings).tolist() == [row]


@pytest.mark.parametrize(
    ("encoding", "target"), [*((encoding, 20) for encoding in ENCODINGS), ("sinusoidal", 13), ("alibi", 31)]
)
def test_prompt_lookup(lively, encoding, target):
    """The sentence so far is the prompt, so it must repeat itself for anything to be found there."""
    model = lively(9, position_encoding=encoding, tied_embeddings="none", decoder_vocab_size=target)
    saved = 0
    for source in each(batch_of(RAGGED)):
        row = plain_greedy(model, source, 20, rules=[no_repeated_ngram(4)])
        with counted(model) as calls:
            settings = {"prompt_lookup_num_tokens": 3, "no_repeat_ngram_size": 4, "max_new_tokens": 20}
            output = model.generate(**source, **settings)
        assert output.tolist() == [row]
        saved += len(row) - 1 - len(calls)
    assert saved > 0


# --- streamers ---


def words(V: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose words are w3, w4 and so on."""
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    names = [*special.values(), *(f"w{i}" for i in range(3, V))]
    tokenizer = Tokenizer(WordLevel({name: i for i, name in enumerate(names)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


@pytest.fixture(params=["translation", "language_model"])
def streamed(request, model_with, lm_with):
    """A model, its input, a tokenizer, and how many tokens stand before the first new one."""
    if request.param == "translation":
        return model_with("rotary"), next(each(batch_of(RAGGED))), words(20), 1
    return lm_with("rotary"), {"input_ids": torch.tensor(PROMPTS[:1])}, words(20), len(PROMPTS[0])


STREAMED_MODES = ["greedy", "sampling", "assisted"]


def stream(model, mode: str, inputs: dict, **settings) -> torch.Tensor:
    torch.manual_seed(1)
    mode_settings = {"assistant_model": copy.deepcopy(model)} if mode == "assisted" else MODES[mode]
    return model.generate(**inputs, max_new_tokens=NEW, **mode_settings, min_new_tokens=6, **RULE_SETTINGS, **settings)


@pytest.mark.parametrize("skip_prompt", [False, True], ids=["with_prompt", "without_prompt"])
@pytest.mark.parametrize("mode", STREAMED_MODES)
def test_a_text_streamer_prints_the_output(streamed, capsys, mode, skip_prompt):
    model, inputs, tokenizer, start = streamed
    stream(model, mode, inputs, streamer=TextStreamer(tokenizer, skip_prompt, skip_special_tokens=True))
    printed = capsys.readouterr().out
    row = stream(model, mode, inputs)[0]
    text = tokenizer.decode(row[start if skip_prompt else 0 :], skip_special_tokens=True)
    assert len(text.split()) > 4
    assert printed == text + "\n"


@pytest.mark.parametrize("mode", STREAMED_MODES)
def test_an_iterator_streamer_gives_the_output_in_pieces(streamed, mode):
    model, inputs, tokenizer, start = streamed
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60, skip_special_tokens=True)
    thread = threading.Thread(target=stream, args=(model, mode, inputs), kwargs={"streamer": streamer})
    thread.start()
    pieces = list(streamer)
    thread.join()
    row = stream(model, mode, inputs)[0]
    assert "".join(pieces) == tokenizer.decode(row[start:], skip_special_tokens=True)
    assert len(pieces) > 4


# --- quantised caches ---


@contextlib.contextmanager
def rounding_to_fp8(model, first: int):
    """
    While this lasts, the decoder's keys and values are what an fp8 cache would hold after a first input of `first`
    positions: all on a scale that puts the largest of those at fp8's largest number. (A cache hands its first input
    back unrounded, which the keys of a second layer would show: this is for models of one layer.)
    """
    largest = torch.finfo(torch.float8_e4m3fn).max

    def rounded(module, inputs, output):  # (B, T, H · K)
        if output.shape[1] == first:
            return output
        scale = output[:, :first].abs().max() / largest
        return (output / scale).to(torch.float8_e4m3fn).float() * scale

    attention = model.get_decoder().layers[0].self_attn
    handles = [projection.register_forward_hook(rounded) for projection in (attention.k_proj, attention.v_proj)]
    yield
    for handle in handles:
        handle.remove()


def quantised(model, backend: str, **settings) -> EncoderDecoderCache:
    """What generate() would not make."""
    return EncoderDecoderCache(QuantizedCache(backend, model.config, **settings), DynamicCache(config=model.config))


def test_generate_makes_no_quantised_cache_for_an_encoder_decoder(model_with):
    with pytest.raises(ValueError, match="does not support the quantized cache"):
        model_with("alibi").generate(**batch_of(EVEN), cache_implementation="quantized", max_new_tokens=2)


@pytest.mark.parametrize("encoding", ["sinusoidal", "learned", "alibi"])
@pytest.mark.parametrize("mode", ["greedy", "sampling", "beam", "n_best", "beam_sampling"])
def test_translation_with_an_fp8_cache(lively, mode, encoding):
    """Not with rotary positions, for there keys are rounded after they are turned: they go with those below."""
    model = lively(3, position_encoding=encoding, **ENCODINGS[encoding] | {"decoder_layers": 1})
    for source in each(batch_of(RAGGED)):
        with rounding_to_fp8(model, first=1):
            rows = plain(mode, model, [source], STARTS[:1])
        cache = quantised(model, "fp8")
        assert generated(mode, model, source, STARTS[:1], **RULE_SETTINGS, cache=cache) == rows


@pytest.mark.parametrize("encoding", ["sinusoidal", "learned", "alibi"])
@pytest.mark.parametrize("mode", ["greedy", "sampling", "beam", "n_best", "beam_sampling"])
def test_language_model_with_an_fp8_cache(lm_with, mode, encoding):
    model = lm_with(encoding, decoder_layers=1)
    settings = {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}} | RULE_SETTINGS
    for prompt in PROMPTS:
        with rounding_to_fp8(model, first=len(prompt)):
            rows = plain(mode, model, [None], [prompt])
        assert generated(mode, model, {"input_ids": torch.tensor([prompt])}, [prompt], **settings) == rows


def blur(model, source, row: list[int], cache) -> float:
    """How far logits with this cache are from those without one, at most, in all of the sentence's steps."""
    with torch.no_grad():
        exact = model(**source, decoder_input_ids=torch.tensor([row]), use_cache=False).logits[0]
        steps = [model(**source, decoder_input_ids=torch.tensor([[token]]), cache=cache).logits[0, 0] for token in row]
    return (torch.stack(steps) - exact).abs().max().item()


PACKAGES = {"hqq": ("hqq", (8, 4, 2)), "quanto": ("optimum.quanto", (4, 2))}


@every_encoding
@pytest.mark.parametrize("backend", PACKAGES)
def test_the_more_bits_a_quantised_cache_has_the_closer_it_comes(lively, backend, encoding):
    """That it is never exact shows that it was used. An affine grid of b bits has 2^b - 1 steps."""
    package, bits = PACKAGES[backend]
    pytest.importorskip(package, reason=f"{backend} caches need the package {package.replace('.', '-')}")
    model = lively(3, position_encoding=encoding, d_model=64, **ENCODINGS[encoding] | {"d_k": 32, "d_v": 32})
    source = next(each(batch_of((8,))))
    row = plain_greedy(model, source, 16)
    axis = {"axis_key": 1, "axis_value": 1} if backend == "hqq" else {}
    blurs = [
        blur(model, source, row, quantised(model, backend, nbits=b, q_group_size=8, residual_length=1, **axis))
        for b in bits
    ]
    assert blurs[0] > 0
    assert blurs == sorted(blurs)
    assert bits[0] < 8 or blurs[0] < blurs[-1] / 8  # 255 steps against 3
    if bits[0] == 8:
        cache = quantised(model, backend, nbits=8, q_group_size=8, residual_length=1, **axis)
        output = model.generate(**source, max_new_tokens=16, **NO_REPEATS, cache=cache)[0].tolist()
        for n in range(1, len(output)):  # tokens are the same unless two are closer than the blur
            scores = next_log_probs(model, source, [output[:n]])[0]
            assert scores.max() - scores[output[n]] <= 2 * blurs[0]


# --- beam search with a cache and without, on 200 random models ---


def random_model_and_batch(lively, seed: int):
    """Any sizes, positions, norms and vocabularies, and a ragged batch padded on either side."""
    pick = random.Random(seed)
    heads = [pick.choice([1, 2, 4]) for _ in range(2)]
    target = pick.choice([20, 14, 27])
    model = lively(
        seed,
        d_model=pick.choice([8, 16, 24]),
        encoder_layers=pick.randint(1, 3),
        decoder_layers=pick.randint(1, 3),
        encoder_attention_heads=heads[0],
        decoder_attention_heads=heads[1],
        d_k=pick.choice([2, 4, 6]),
        d_v=pick.choice([2, 3, 8]),
        encoder_ffn_dim=pick.choice([5, 16]),
        decoder_ffn_dim=pick.choice([5, 16]),
        decoder_vocab_size=target,
        tied_embeddings=pick.choice(
            ["all", "decoder", "source_target", "none"] if target == 20 else ["decoder", "none"]
        ),
        position_encoding=pick.choice(list(ENCODINGS)),
        norm_position=pick.choice(["pre", "post"]),
        use_bias=pick.random() < 0.7,
        activation_function=pick.choice(["relu", "gelu"]),
        attn_implementation=pick.choice(["sdpa", "eager"]),
    )
    lengths = [pick.randint(1, 7) for _ in range(pick.randint(1, 3))]
    batch = sources(lengths, left=pick.random() < 0.5)
    settings = {
        "num_beams": pick.randint(2, 5),
        "length_penalty": pick.choice([-0.5, 0.0, 0.6, 1.0, 2.0]),
        "early_stopping": pick.choice([True, False, "never"]),
        "max_new_tokens": pick.randint(4, 7),
    }
    settings["num_return_sequences"] = pick.randint(1, settings["num_beams"])
    settings["cache_implementation"] = pick.choice(["dynamic", "static"])
    return model, batch, settings | NO_REPEATS | {"return_dict_in_generate": True, "output_scores": True}


@pytest.mark.parametrize("first", range(0, 100, 20), ids=lambda first: f"models_{first}_to_{first + 19}")
def test_beam_search_is_the_same_with_a_cache_and_without(lively, first):
    outputs = []
    for seed in range(first, first + 20):
        model, batch, settings = random_model_and_batch(lively, seed)
        cached = model.generate(**batch, **settings)
        without = model.generate(**batch, **settings | {"cache_implementation": None, "use_cache": False})
        assert torch.equal(cached.sequences, without.sequences), seed
        torch.testing.assert_close(cached.sequences_scores, without.sequences_scores)
        outputs += trimmed(without.sequences)
    assert len({tuple(row) for row in outputs}) > len(outputs) * 3 / 4
    assert 0 < sum(row[-1] == EOS for row in outputs) < len(outputs)


# --- language model: mode, cache, input, positions ---


@pytest.fixture(scope="module")
def expected_of_lm(lm_with):
    return functools.cache(lambda mode, encoding: plain(mode, lm_with(encoding), [None] * 3, PROMPTS))


def prompts() -> dict[str, torch.Tensor]:
    return dict(zip(("input_ids", "attention_mask"), padded_left(PROMPTS), strict=True))


@pytest.mark.parametrize(
    ("mode", "cache", "encoding"), cells([(e,) for e in ENCODINGS], offloaded_with=("sinusoidal",))
)
def test_language_model_with_left_padded_prompts(lm_with, expected_of_lm, mode, cache, encoding):
    model, batch = placed(cache, lm_with(encoding), prompts())
    rows = generated(mode, model, batch, PROMPTS, **RULE_SETTINGS, **CACHES[cache])
    if cache in ON_THE_CPU:
        assert rows == expected_of_lm(mode, encoding)
    else:
        assert rows == plain(mode, model, [None] * 3, PROMPTS)


@every_mode
def test_the_tables_language_models_say_different_things(expected_of_lm, mode):
    rows = [row for encoding in ENCODINGS for row in expected_of_lm(mode, encoding)]
    assert len({tuple(row) for row in rows}) > len(rows) * 3 / 4
    assert 0 < sum(row[-1] == EOS for row in rows) < len(rows)
    assert len({token for row in rows for token in row}) > 12


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("drafts", ["itself", "smaller", "prompt_lookup"])
@every_encoding
def test_language_model_with_drafts(lm_with, encoding, drafts, cache):
    model, rules, settings = lm_with(encoding), [no_repeated_ngram(3)], {"no_repeat_ngram_size": 3} | CACHES[cache]
    if drafts == "prompt_lookup":
        settings["prompt_lookup_num_tokens"] = 3
    else:
        settings["assistant_model"] = lm_with(encoding, decoder_layers=1) if drafts == "smaller" else model
    for prompt in PROMPTS[:2]:
        row = plain_greedy(model, None, 12, prompt, rules)
        assert model.generate(torch.tensor([prompt]), max_new_tokens=12, **settings).tolist() == [row]
