"""generate() against plain loops that keep no cache, and beam search against trying every sequence.

Shapes: `B` sentences, `S` source and `T` target positions, `V` vocabulary.
"""

import itertools

import pytest
import torch

from tests.plain_decoding import (
    EOS,
    NO_REPEATS,
    START,
    each,
    next_log_probs,
    plain_beam_search,
    plain_greedy,
    plain_sampling,
    sources,
    tempered,
    trimmed,
)

# One of these at least touches each part that a cache, a padded batch or a long sentence might get wrong.
VARIANTS = [
    {},
    {"norm_position": "pre", "tied_embeddings": "none"},
    {"tied_embeddings": "decoder", "decoder_vocab_size": 13},
    {"tied_embeddings": "source_target", "use_bias": False, "output_bias": True},
    {"d_k": 3, "d_v": 5, "encoder_layers": 1, "decoder_layers": 3},
    {"encoder_attention_heads": 4, "decoder_attention_heads": 1, "sinusoid_layout": "halves", "position_offset": 1},
    {"attn_implementation": "eager", "sinusoid_layout": "tensor2tensor"},
    {"scale_embedding": False, "encoder_ffn_dim": 7, "decoder_ffn_dim": 9, "max_position_embeddings": 5},
]

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=str)
every_cache = pytest.mark.parametrize("cache", [{"use_cache": False}, {}, {"cache_implementation": "static"}], ids=str)


# --- greedy ---


@every_variant
@every_cache
@pytest.mark.parametrize("seed", range(3))
def test_greedy_search_is_a_loop_over_argmax(lively, variant, cache, seed):
    model = lively(seed, **variant)
    batch = sources((5, 1, 3, 8))
    expected = [plain_greedy(model, source, 11) for source in each(batch)]
    assert trimmed(model.generate(**batch, max_new_tokens=11, **NO_REPEATS, **cache)) == expected


def test_a_finished_sentence_is_filled_up_with_padding(lively):
    model = lively(0, pad_token_id=19)
    with torch.no_grad():
        model.lm_head.bias[EOS] += 1.0
    rows = model.generate(**sources((5, 1, 3, 8)), max_new_tokens=11, **NO_REPEATS).tolist()
    assert len({row.index(EOS) for row in rows}) > 1
    for row in rows:
        assert set(row[row.index(EOS) + 1 :]) <= {19}


def test_the_models_of_these_tests_say_different_things(lively):
    """Or all the comparisons here would compare little."""
    outputs = []
    for variant in VARIANTS:
        model = lively(**variant)
        outputs += [plain_greedy(model, source, 11) for source in each(sources((5, 1, 3, 8)))]
    assert len({tuple(output) for output in outputs}) > len(outputs) * 3 / 4
    assert len(outputs) / 5 < sum(output[-1] == EOS for output in outputs) < len(outputs) * 4 / 5


@every_cache
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_batch_gives_what_its_sentences_give_alone(lively, cache, num_beams):
    model = lively(1)
    batch = sources((2, 7, 1, 4))
    settings = {"max_new_tokens": 10, "num_beams": num_beams} | NO_REPEATS | cache
    alone = [trimmed(model.generate(**source, **settings))[0] for source in each(batch)]
    assert trimmed(model.generate(**batch, **settings)) == alone


@every_cache
def test_generation_goes_on_past_the_position_table(lively, cache):
    model = lively(2, max_position_embeddings=4)
    with torch.no_grad():
        model.lm_head.bias[EOS] -= 1e3  # so that it ends last
    source = next(each(sources((9,))))
    expected = plain_greedy(model, source, 18)
    assert len(expected) == 19
    assert trimmed(model.generate(**source, max_new_tokens=18, **NO_REPEATS, **cache)) == [expected]


@pytest.mark.parametrize("as_tuple", [False, True])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_the_encoders_output_may_be_given(lively, num_beams, as_tuple):
    model = lively(3)
    batch = sources((5, 1, 3))
    settings = {"max_new_tokens": 10, "num_beams": num_beams} | NO_REPEATS
    expected = model.generate(**batch, **settings)
    outputs = model.get_encoder()(**batch)
    calls = []
    model.get_encoder().register_forward_hook(lambda *_: calls.append(1))
    outputs = outputs.to_tuple() if as_tuple else outputs
    given = model.generate(encoder_outputs=outputs, attention_mask=batch["attention_mask"], **settings)
    assert torch.equal(given, expected)
    assert calls == []


def test_the_sources_embeddings_may_be_given(lively):
    model = lively(3)
    batch = sources((5, 1, 3))
    embeds = model.get_input_embeddings()(batch["input_ids"])
    settings = {"max_new_tokens": 10} | NO_REPEATS
    given = model.generate(inputs_embeds=embeds, attention_mask=batch["attention_mask"], **settings)
    assert torch.equal(given, model.generate(**batch, **settings))


@every_cache
@pytest.mark.parametrize("prefix", [[START, 7], [START, 9, 4, 11]], ids=str)
def test_greedy_search_continues_a_prefix(lively, cache, prefix):
    model = lively(4)
    batch = sources((5, 1, 3))
    expected = [plain_greedy(model, source, 8, prefix) for source in each(batch)]
    ids = torch.tensor([prefix] * 3)
    output = model.generate(**batch, decoder_input_ids=ids, max_new_tokens=8, **NO_REPEATS, **cache)
    assert trimmed(output) == expected


def test_the_start_token_is_put_before_a_prefix_without_it(lively):
    model = lively(4)
    batch = sources((5, 1))
    settings = {"max_new_tokens": 8} | NO_REPEATS
    with_it = model.generate(**batch, decoder_input_ids=torch.tensor([[START, 7]] * 2), **settings)
    without = model.generate(**batch, decoder_input_ids=torch.tensor([[7]] * 2), **settings)
    assert torch.equal(with_it, without)


@every_cache
@pytest.mark.parametrize("seed", range(3))
def test_sampling_draws_as_a_plain_loop_does(lively, cache, seed):
    model = lively(5)
    source = next(each(sources((5,))))
    torch.manual_seed(seed)
    expected = plain_sampling(model, [source], 10, rules=[tempered(1.5)])
    torch.manual_seed(seed)
    sampled = model.generate(**source, max_new_tokens=10, do_sample=True, top_k=0, temperature=1.5, **cache)
    assert sampled.tolist() == expected


def test_sampling_follows_the_models_distribution(lively):
    model = lively(6)
    source = next(each(sources((4,))))
    probabilities = next_log_probs(model, source, [[START]], rules=())[0].exp()
    n = 4000
    first = model.generate(**source, max_new_tokens=1, do_sample=True, top_k=0, num_return_sequences=n)[:, 1]
    counts = torch.bincount(first, minlength=20)
    deviation = (n * probabilities * (1 - probabilities)).sqrt()
    assert ((counts - n * probabilities).abs() < 5 * deviation + 1).all()


# --- beams ---


@every_variant
@pytest.mark.parametrize(
    ("early_stopping", "length_penalty"), [("never", 0.0), ("never", 1.0), ("never", -0.5), (True, 0.6), (True, 0.0)]
)
def test_beam_search_is_a_plain_beam_search(lively, variant, early_stopping, length_penalty):
    model = lively(7, **variant)
    batch = sources((5, 1, 3))
    settings = {"num_beams": 3, "length_penalty": length_penalty, "early_stopping": early_stopping}
    finished = [plain_beam_search(model, source, max_new_tokens=8, **settings) for source in each(batch)]
    output = model.generate(
        **batch,
        max_new_tokens=8,
        num_return_sequences=3,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
        **NO_REPEATS,
    )
    scores, expected = zip(*itertools.chain.from_iterable(finished), strict=True)
    assert trimmed(output.sequences) == list(expected)
    torch.testing.assert_close(output.sequences_scores, torch.tensor(scores), rtol=1e-5, atol=1e-5)


@every_variant
@every_cache
def test_beams_are_the_same_with_every_cache(lively, variant, cache):
    model = lively(8, **variant)
    batch = sources((5, 1, 3))
    settings = {"num_beams": 4, "early_stopping": "never"}
    expected = [plain_beam_search(model, source, max_new_tokens=8, **settings)[0][1] for source in each(batch)]
    assert trimmed(model.generate(**batch, max_new_tokens=8, **settings, **NO_REPEATS, **cache)) == expected


@every_cache
def test_beam_search_continues_a_prefix(lively, cache):
    model = lively(9)
    batch = sources((5, 1, 3))
    prefix = [START, 9, 4]
    settings = {"num_beams": 4, "max_new_tokens": 6, "early_stopping": "never"}
    expected = [plain_beam_search(model, source, **settings, prefix=prefix)[0][1] for source in each(batch)]
    ids = torch.tensor([prefix] * 3)
    output = model.generate(**batch, decoder_input_ids=ids, **settings, **NO_REPEATS, **cache)
    assert trimmed(output) == expected


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_beam_search_wide_enough_finds_what_trying_everything_finds(lively, seed, length_penalty):
    V, longest = 5, 4
    model = lively(seed, vocab_size=V, max_position_embeddings=8)
    source = {"input_ids": torch.tensor([[3, 4, 3]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}

    others = [token for token in range(V) if token != EOS]
    score, best = -torch.inf, None
    sums = {(): 0.0}  # of the prefixes that have not ended
    for n in range(1, longest + 1):
        rows = next_log_probs(model, source, [[START, *prefix] for prefix in sums], rules=()).tolist()
        extended = {
            (*prefix, token): total + log_prob
            for (prefix, total), row in zip(sums.items(), rows, strict=True)
            for token, log_prob in enumerate(row)
        }
        assert len(extended) == len(others) ** (n - 1) * V
        for tokens, total in extended.items():
            if (tokens[-1] == EOS or n == longest) and total / n**length_penalty > score:
                score, best = total / n**length_penalty, tokens
        sums = {tokens: total for tokens, total in extended.items() if tokens[-1] != EOS}

    output = model.generate(
        **source,
        max_new_tokens=longest,
        num_beams=80,  # more than the 4^3 prefixes, and all that may end in a step
        early_stopping="never",
        length_penalty=length_penalty,
        return_dict_in_generate=True,
        output_scores=True,
    )
    assert output.sequences[0].tolist() == [START, *best]
    torch.testing.assert_close(output.sequences_scores[0].item(), score, rtol=1e-5, atol=1e-5)


def test_a_beam_of_one_is_greedy_search(lively):
    model = lively(10)
    source = next(each(sources((6,))))
    expected = model.generate(**source, max_new_tokens=8, num_beams=1, **NO_REPEATS)
    assert trimmed(expected) == [plain_beam_search(model, source, 1, 8)[0][1]]


def test_transition_scores_add_up_to_the_sequences_score(lively):
    model = lively(12)
    output = model.generate(
        **sources((5, 1, 3)),
        max_new_tokens=8,
        num_beams=3,
        length_penalty=0.0,
        return_dict_in_generate=True,
        output_scores=True,
    )
    scores = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    torch.testing.assert_close(scores.sum(1), output.sequences_scores, rtol=1e-5, atol=1e-5)


def test_a_sequences_score_is_its_likelihood(lively):
    model = lively(12)
    batch = sources((5, 1, 3))
    output = model.generate(
        **batch, max_new_tokens=8, num_beams=3, length_penalty=1.0, return_dict_in_generate=True, output_scores=True
    )
    for i, source in enumerate(each(batch)):
        labels = torch.tensor([trimmed(output.sequences)[i][1:]])
        nll = model(**source, labels=labels).nll
        torch.testing.assert_close(output.sequences_scores[i], -nll, rtol=1e-5, atol=1e-5)


# --- settings ---


def test_the_configs_token_ids_reach_the_generation_config(tiny_model):
    settings = tiny_model(pad_token_id=3, bos_token_id=4, eos_token_id=5, decoder_start_token_id=6).generation_config
    ids = settings.pad_token_id, settings.bos_token_id, settings.eos_token_id, settings.decoder_start_token_id
    assert ids == (3, 4, 5, 6)


def test_another_start_token_than_padding_or_eos_begins_every_sentence(lively):
    model = lively(1, decoder_start_token_id=9)
    assert model.generate(**sources(), max_new_tokens=3)[:, 0].tolist() == [9, 9, 9]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_half_precision_generates(lively, num_beams):
    model = lively(13).bfloat16()
    output = model.generate(
        **sources(), max_new_tokens=9, num_beams=num_beams, return_dict_in_generate=True, output_scores=True
    )
    assert ((output.sequences >= 0) & (output.sequences < 20)).all()
    assert all(step.isfinite().all() for step in output.scores)


def test_half_precision_with_a_cache_follows_half_precision_without(lively):
    """Token for token where the best token leads by more than bfloat16 blurs."""
    model = lively(14).bfloat16()
    source = next(each(sources((6,))))
    sequence = trimmed(model.generate(**source, max_new_tokens=10, **NO_REPEATS))[0]
    for n in range(1, len(sequence)):
        log_probs = next_log_probs(model, source, [sequence[:n]])[0]
        assert log_probs.max() - log_probs[sequence[n]] < 0.1


def test_a_source_of_nothing_but_padding_generates(lively):
    model = lively(15)
    batch = sources((4, 0))
    output = trimmed(model.generate(**batch, max_new_tokens=6, **NO_REPEATS))
    assert output[0] == plain_greedy(model, next(each(batch)), 6)


def test_generation_leaves_the_model_able_to_train(lively):
    model = lively(16, max_position_embeddings=4)
    ids = sources((6,))["input_ids"]
    before = {name: x.clone() for name, x in model.state_dict().items()}
    model.generate(ids, max_new_tokens=9, cache_implementation="static")
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    model.train()(input_ids=ids, labels=ids).loss.backward()
    assert model.lm_head.weight.grad.isfinite().all()


@pytest.mark.parametrize("num_beams", [1, 2])
def test_attentions_of_a_generated_sentence_have_their_shapes(lively, num_beams):
    model = lively(17, attn_implementation="eager")
    output = model.generate(
        **sources((5,)),
        max_new_tokens=4,
        min_new_tokens=4,
        num_beams=num_beams,
        output_attentions=True,
        return_dict_in_generate=True,
    )
    assert [step[0].shape for step in output.cross_attentions] == [(num_beams, 2, 1, 5)] * 4
    assert [step[0].shape for step in output.decoder_attentions] == [(num_beams, 2, 1, n) for n in range(1, 5)]
    assert output.encoder_attentions[0].shape[1:] == (2, 5, 5)
