"""
Every way to compute attention, against eager: with every kind of position, under every mask, cached and not.

Shapes: `B` sentences, `S` source and `T` target positions, `H` heads, `K` d_k.
"""

import copy
import logging
from itertools import pairwise

import pytest
import torch
import transformers
from torch import nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForSeq2SeqLM,
    DynamicCache,
    EncoderDecoderCache,
    StaticCache,
)
from transformers import modeling_flash_attention_utils as flash_utils
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.masking_utils import eager_mask, flash_attention_mask, sdpa_mask
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.roformer.modeling_roformer import RoFormerSelfAttention, RoFormerSinusoidalPositionalEmbedding
from transformers.utils import logging as transformers_logging

from modeling_vanilla import VanillaForConditionalGeneration
from modeling_vanilla.attention import VanillaAttention, check_backend, eager_attention_forward, queries_with_keys
from tests.fixtures import POSITION_ENCODINGS, padded, random_padded

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")


def own(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """As somebody writes it who knows nothing of ALiBi; the mask is added."""
    scores = torch.einsum("bhtk,bhsk->bhts", query, key).float() * scaling
    if attention_mask is not None:
        scores = scores + attention_mask.float()
    return torch.einsum("bhts,bhsv->bthv", scores.softmax(-1).to(value.dtype), value), None


def own_with_bias(module, query, key, value, attention_mask, scaling, dropout=0.0, position_bias=None, **kwargs):
    """As somebody writes it who builds on PyTorch; the mask is boolean, or missing where `is_causal` says it all."""
    T, S = query.shape[2], key.shape[2]
    if attention_mask is None:
        attention_mask = (
            torch.ones(T, S, dtype=torch.bool).tril() if module.is_causal and T > 1 else torch.ones(T, S) > 0
        )
    bias = torch.zeros(1) if position_bias is None else position_bias
    bias = torch.where(attention_mask, bias, -torch.inf).to(query.dtype)
    output = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scaling)
    return output.transpose(1, 2), None


AttentionInterface.register("own", own)
AttentionMaskInterface.register("own", eager_mask)
AttentionInterface.register("own_with_bias", own_with_bias)
AttentionMaskInterface.register("own_with_bias", sdpa_mask)

PAIRS = [
    (backend, kind)
    for backend in ("sdpa", "flex_attention", "own", "own_with_bias")
    for kind in POSITION_ENCODINGS
    if (backend, kind) != ("own", "alibi")
]
MASKS = {  # lengths of sources and targets, and the side of their padding
    "none": ([6, 6, 6], [5, 5, 5], None),
    "right": ([6, 3, 1], [5, 2, 4], "right"),
    "left": ([6, 3, 1], [5, 2, 4], "left"),
    "nothing but padding": ([6, 0, 3], [5, 4, 0], "left"),
    "one token": ([1, 1, 1], [1, 1, 1], "right"),
}
every_pair = pytest.mark.parametrize(("backend", "kind"), PAIRS)
every_kind = pytest.mark.parametrize("kind", POSITION_ENCODINGS)
every_mask = pytest.mark.parametrize("masks", MASKS)


@pytest.fixture(autouse=True)
def uncompiled():
    """flex_attention's Python is run as it is: what compiling it for a CPU gives takes ten seconds a model."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(scope="session")
def twins(tiny_model):
    """
    The same model on eager and on another backend; in float32 it attends to few places, which random weights hardly do.
    """

    def build(backend, dtype=torch.float32, **changes):
        torch.manual_seed(1)
        eager = tiny_model(**{"attn_implementation": "eager"} | changes)
        with torch.no_grad():
            for module in eager.modules():
                if isinstance(module, VanillaAttention):
                    module.q_proj.weight *= 3 if dtype == torch.float32 else 1
                    module.k_proj.weight *= 3 if dtype == torch.float32 else 1
        eager = eager.to(dtype)
        other = copy.deepcopy(eager)
        other.set_attn_implementation(backend)
        assert other.model.decoder.layers[0].self_attn.config._attn_implementation == backend
        assert eager.config._attn_implementation == "eager"
        return eager, other

    return build


def batch(masks: str) -> dict[str, torch.Tensor]:
    sources, targets, side = MASKS[masks]
    (ids, mask), (target, target_mask) = (random_padded(lengths, side or "right") for lengths in (sources, targets))
    if side is None:
        return {"input_ids": ids, "decoder_input_ids": target}
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "decoder_input_ids": target,
        "decoder_attention_mask": target_mask,
    }


def assert_near(actual: torch.Tensor, expected: torch.Tensor, name: str = "") -> None:
    """In bfloat16 as near as the library's own tests, in test_eager_matches_sdpa_inference, want the two to be."""
    rtol = atol = 1e-5
    if expected.dtype == torch.bfloat16:
        rtol, atol = 1e-2, max(1e-2, 3e-2 * expected.abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, msg=lambda message: f"{name}: {message}")


# --- the whole model ---


@pytest.mark.parametrize(
    ("backend", "kind", "dtype", "masks"),
    [
        (*pair, dtype, masks)
        for pair in PAIRS
        for dtype in (torch.float32, torch.bfloat16)
        for masks in MASKS
        # flex_attention takes a tenth of a second to make a mask
        if masks == "nothing but padding"
        or (dtype == torch.float32 and (pair[0] != "flex_attention" or masks == "right"))
    ],
    ids=str,
)
@torch.no_grad()
def test_every_backend_gives_what_eager_gives(twins, backend, kind, masks, dtype):
    eager, other = twins(backend, dtype, position_encoding=kind)
    inputs = batch(masks)
    expected, output = eager(**inputs), other(**inputs)
    assert expected.logits.isfinite().all()
    assert_near(output.encoder_last_hidden_state, expected.encoder_last_hidden_state)
    assert_near(output.logits, expected.logits)


def gradients_of(model, inputs) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    logits = model(**inputs, use_cache=False).logits
    (logits * torch.randn(logits.shape, device=logits.device).to(logits.dtype)).mean().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


NOT_FLEX = [pair for pair in PAIRS if pair[0] != "flex_attention"]


@pytest.mark.parametrize(("backend", "kind"), NOT_FLEX)
@every_mask
def test_every_backend_gives_the_gradients_that_eager_gives(twins, backend, kind, masks):
    eager, other = twins(backend, position_encoding=kind)
    inputs = batch(masks)
    expected, gradients = gradients_of(eager, inputs), gradients_of(other, inputs)
    assert all(gradient.isfinite().all() for gradient in expected.values())
    for name, gradient in gradients.items():
        assert_near(gradient, expected[name], name)


@pytest.mark.parametrize(("backend", "kind"), [*NOT_FLEX, *(("eager", kind) for kind in POSITION_ENCODINGS)])
@pytest.mark.parametrize("masks", ["none", "nothing but padding"])
def test_gradients_in_half_precision_are_near_float32s(twins, backend, kind, masks):
    """Of a smooth model: where rounding turns a relu on or off, gradients differ by more than rounding."""
    _, half = twins(backend, torch.bfloat16, position_encoding=kind, activation_function="gelu")
    inputs = batch(masks)
    exact = gradients_of(copy.deepcopy(half).float(), inputs)
    for name, gradient in gradients_of(half, inputs).items():
        assert gradient.dtype == torch.bfloat16
        assert_near(gradient, exact[name].bfloat16(), name)
        if "k_proj.bias" not in name:  # a key's bias moves all scores alike, so its gradient is rounding alone
            assert (gradient.float() - exact[name]).norm() < 0.1 * exact[name].norm() + 1e-4, name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="flex_attention has gradients on a GPU alone")
@every_kind
@every_mask
def test_flex_attention_gives_the_gradients_that_eager_gives(twins, kind, masks):
    with torch.compiler.set_stance("default"):
        eager, other = (model.cuda() for model in twins("flex_attention", d_k=16, d_v=16, position_encoding=kind))
        inputs = {name: x.cuda() for name, x in batch(masks).items()}
        expected = gradients_of(eager, inputs)
        for name, gradient in gradients_of(other, inputs).items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-4)


def test_flex_attention_on_a_cpu_says_that_it_has_no_gradients(twins):
    _, other = twins("flex_attention")
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"):
        gradients_of(other, batch("right"))


@pytest.mark.slow
@every_kind
@torch.no_grad()
def test_flex_attention_compiled_gives_what_eager_gives(twins, kind):
    eager, other = twins("flex_attention", position_encoding=kind)
    ids, mask = random_padded([6, 3, 1], "left")  # of one length: torch 2.13 has no code for a bias of several
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids}
    with torch.compiler.set_stance("default"):
        logits = other(**inputs).logits
    assert_near(logits, eager(**inputs).logits)


# --- one attention ---


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize(("B", "T"), [(1, 1), (2, 7), (3, 30)])
def test_rotary_attention_is_roformers(twins, backend, B, T):
    """Queries and keys turned by RoFormer's function, and PyTorch's attention."""
    encoder = twins(backend, position_encoding="rotary")[1].model.encoder
    module, x = encoder.layers[0].self_attn, torch.randn(B, T, 16)
    query, key, value = (
        nn.functional.linear(x, p.weight, p.bias).unflatten(-1, (2, 8)).transpose(1, 2)
        for p in (module.q_proj, module.k_proj, module.v_proj)
    )
    rows = RoFormerSinusoidalPositionalEmbedding(T, 8).create_weight()[None, None]
    query, key = RoFormerSelfAttention.apply_rotary_position_embeddings(rows, query, key)
    heads = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    expected = module.out_proj(heads)
    _, to_self = encoder.add_positions(x, 0, T, None)
    assert_near(module(x, **to_self)[0], expected)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize(("B", "T", "H"), [(1, 1, 2), (2, 7, 4), (3, 30, 1), (2, 5, 16)])
def test_alibi_attention_is_pytorchs_with_the_bias_as_its_mask(twins, backend, side, B, T, H):
    """For each query its own last row of MPT's bias; the decoder's besides sees no future."""
    heads = {"encoder_attention_heads": H, "decoder_attention_heads": H}
    stack = getattr(twins(backend, position_encoding="alibi", **heads)[1].model, side)
    module, x = stack.layers[0].self_attn, torch.randn(B, T, 16)
    bias = torch.zeros(H, T, T)
    for t in range(T):
        before = build_mpt_alibi_tensor(H, t + 1)[:, 0]  # (H, t + 1)
        bias[:, t, : t + 1] = before
        bias[:, : t + 1, t] = before  # symmetric
    if side == "decoder":
        bias = bias.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    reference = nn.MultiheadAttention(16, H, batch_first=True)
    with torch.no_grad():
        reference.in_proj_weight.copy_(torch.cat([p.weight for p in (module.q_proj, module.k_proj, module.v_proj)]))
        reference.in_proj_bias.copy_(torch.cat([p.bias for p in (module.q_proj, module.k_proj, module.v_proj)]))
        reference.out_proj.load_state_dict(module.out_proj.state_dict())
    expected, _ = reference(x, x, x, attn_mask=bias.repeat(B, 1, 1))
    _, to_self = stack.add_positions(x, 0, T, None)
    mask = torch.ones(T, T).tril().bool()[None, None] if side == "decoder" else None
    assert_near(module(x, attention_mask=mask, **to_self)[0], expected)


@every_kind
def test_positions_play_no_part_between_encoder_and_decoder(twins, kind):
    """The order of the encoder's vectors does not matter to the decoder."""
    decoder = twins("eager", position_encoding=kind)[0].model.decoder
    ids, states = torch.randint(3, 20, (2, 4)), torch.randn(2, 6, 16)
    outputs = [decoder(ids, encoder_hidden_states=x).last_hidden_state for x in (states, states[:, torch.randperm(6)])]
    assert_near(outputs[1], outputs[0])


# --- rows without a key ---


@pytest.mark.parametrize(("backend", "kind"), [*PAIRS, *(("eager", kind) for kind in POSITION_ENCODINGS)])
@torch.no_grad()
def test_where_no_key_is_seen_attention_gives_zeros(twins, backend, kind):
    model = twins(backend, position_encoding=kind)[1]
    inputs = batch("nothing but padding")
    seen = {}
    for name, module in model.named_modules():
        if name.endswith("attn.out_proj"):
            module.register_forward_pre_hook(lambda _, args, name=name: seen.update({name: args[0]}))
    model(**inputs)
    has_source = inputs["attention_mask"].any(-1, keepdim=True)
    has_target = inputs["decoder_attention_mask"].cumsum(-1) > 0
    assert len(seen) == 6
    for name, heads in seen.items():
        rows = has_target if "decoder" in name and "self_attn" in name else has_source.expand(heads.shape[:2])
        assert (heads[~rows] == 0).all(), name
        assert (heads[rows] != 0).any(-1).all(), name


@pytest.mark.parametrize("backend", ["eager", "sdpa", "own_with_bias"])
@every_kind
def test_what_is_nothing_but_padding_moves_no_attention_weight(twins, backend, kind):
    model = twins(backend, position_encoding=kind)[1]
    ids, mask = random_padded([0, 0], extra=3)
    model.model.encoder(ids, mask).last_hidden_state.pow(3).sum().backward()
    for layer in model.model.encoder.layers:
        attention = layer.self_attn
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            assert (projection.weight.grad == 0).all()
        assert (attention.out_proj.weight.grad == 0).all()
        assert attention.out_proj.bias.grad.isfinite().all()


KEEP = torch.tensor([[[1, 0, 0], [1, 1, 0], [0, 1, 1]], [[0, 0, 0], [0, 1, 0], [0, 0, 0]]]).bool()[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fill", [-torch.inf, None])
def test_queries_with_keys_are_found_in_masks_of_four_axes(dtype, fill):
    expected = [[True, True, True], [False, True, False]]
    fill = torch.finfo(dtype).min if fill is None else fill
    added = torch.zeros(KEEP.shape, dtype=dtype).masked_fill(~KEEP, fill)
    assert queries_with_keys(KEEP).tolist() == expected
    assert queries_with_keys(added).tolist() == expected


@pytest.mark.parametrize("mask", [None, torch.ones(2, 3), torch.tensor([[0, 1], [1, 1]])], ids=str)
def test_where_all_queries_have_keys_nothing_is_done(mask):
    assert queries_with_keys(mask) is None


@pytest.mark.parametrize("backend", ["eager", "sdpa", "own", "own_with_bias"])
@pytest.mark.parametrize("form", ["boolean", "added"])
def test_a_mask_of_four_axes_may_be_given(twins, backend, form):
    """Each query has keys of its own: as PyTorch's attention has it, and zero where there are none."""
    encoder = twins(backend)[1].model.encoder
    if (backend, form) in (("own", "boolean"), ("own_with_bias", "added")):
        pytest.skip("not the kind of mask that this function was registered with")
    mask = KEEP if form == "boolean" else torch.zeros(KEEP.shape).masked_fill(~KEEP, torch.finfo(torch.float32).min)
    seen = []
    attention = encoder.layers[0].self_attn
    attention.register_forward_hook(lambda _, args, output: seen.append((args[0], output[0])))
    encoder(torch.randint(3, 20, (2, 3)), mask)
    x, output = seen[0]
    query, key, value = (
        p(x).unflatten(-1, (2, 8)).transpose(1, 2) for p in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    heads = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=KEEP)
    heads = heads.masked_fill(~KEEP.any(-1, keepdim=True), 0)
    assert_near(output, attention.out_proj(heads.transpose(1, 2).flatten(2)))


# --- backends that are refused ---


def flash(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    raise AssertionError("never called")


AttentionInterface.register("some_flash", flash)
AttentionMaskInterface.register("some_flash", sdpa_mask)
AttentionInterface.register("maskless", own_with_bias)
AttentionInterface.register("somebody/kernel", own_with_bias)


@pytest.mark.parametrize("name", ["some_flash", "flash_attention_2", "own"])
def test_alibi_is_refused_where_its_bias_can_not_be_added(tiny_config, name):
    with pytest.raises(ValueError, match=rf"{name} .*position_bias: use attn_implementation='sdpa' or 'eager'"):
        check_backend(name, tiny_config(position_encoding="alibi"))


@pytest.mark.parametrize(
    "changes", [{"d_k": 4, "d_v": 6}, {"d_k": 4}, {"d_v": 4}, {"d_k": 8, "decoder_attention_heads": 4}], ids=str
)
def test_keys_and_values_of_different_sizes_are_refused_by_flash_attention(tiny_config, changes):
    sizes = changes.get("d_k", 8), changes.get("d_v", 8 if "decoder_attention_heads" not in changes else 4)
    message = rf"some_flash .*d_k={sizes[0]} .*d_v={sizes[1]}: use attn_implementation='sdpa' or 'eager'"
    with pytest.raises(ValueError, match=message):
        check_backend("some_flash", tiny_config(**changes))


@torch.no_grad()
def test_the_mask_that_the_refusal_of_a_function_without_one_names_is_enough(tiny_model):
    """Even for a function that looks at nothing but its mask: the library's sdpa_mask has none for a plain decoder."""
    AttentionInterface.register("mended", own)
    AttentionMaskInterface.register("mended", eager_mask)
    model = tiny_model(attn_implementation="eager")
    ids = torch.randint(3, 20, (2, 5))
    expected = model(ids, decoder_input_ids=ids).logits
    model.set_attn_implementation("mended")
    assert_near(model(ids, decoder_input_ids=ids).logits, expected)


def test_a_function_without_a_mask_is_refused(tiny_config):
    with pytest.raises(ValueError, match=r"maskless would see padding .*register\('maskless', .*eager_mask"):
        check_backend("maskless", tiny_config())


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("eager", {"position_encoding": "alibi", "d_k": 4, "d_v": 6}),
        ("sdpa", {"position_encoding": "alibi", "d_k": 4, "d_v": 6}),
        ("flex_attention", {"position_encoding": "alibi"}),
        ("own_with_bias", {"position_encoding": "alibi", "d_k": 4, "d_v": 6}),
        ("own", {"position_encoding": "rotary", "d_k": 4, "d_v": 6}),
        ("some_flash", {"position_encoding": "rotary", "d_k": 4, "d_v": 4}),
        ("flash_attention_2", {}),
        ("somebody/kernel", {}),
        ("paged|sdpa", {}),
    ],
    ids=str,
)
def test_what_can_be_computed_is_not_refused(tiny_config, name, changes):
    check_backend(name, tiny_config(**changes))


def built(config, tmp_path):
    config._attn_implementation = "own"
    VanillaForConditionalGeneration(config)


def loaded(config, tmp_path):
    VanillaForConditionalGeneration(config).save_pretrained(tmp_path)
    VanillaForConditionalGeneration.from_pretrained(tmp_path, attn_implementation="own")


def set_later(config, tmp_path):
    VanillaForConditionalGeneration(config).set_attn_implementation("own")


def built_by_the_auto_class(config, tmp_path):
    AutoModelForSeq2SeqLM.from_config(config, attn_implementation="own")


@pytest.mark.parametrize("choose", [built, loaded, set_later, built_by_the_auto_class])
def test_a_backend_is_checked_wherever_it_is_chosen(tiny_config, tmp_path, choose):
    with pytest.raises(ValueError, match="own can't add ALiBi's bias"):
        choose(tiny_config(position_encoding="alibi"), tmp_path)


def test_an_unknown_backend_is_refused_by_the_library(tiny_model):
    with pytest.raises(ValueError, match=r"nonsense.* is not supported"):
        tiny_model().set_attn_implementation("nonsense")


# --- attention weights ---


@pytest.fixture
def warnings_of(caplog):
    """What the model warned of, and nothing that a test before this one has warned of already."""
    transformers_logging.warning_once.cache_clear()
    caplog.set_level(logging.WARNING, "modeling_vanilla")
    yield lambda: [record.getMessage() for record in caplog.records if "attention weights" in record.getMessage()]
    transformers_logging.warning_once.cache_clear()


@every_pair
@pytest.mark.parametrize("masks", ["none", "nothing but padding"])
@torch.no_grad()
def test_attention_weights_are_eagers_on_any_backend(twins, backend, kind, masks):
    eager, other = twins(backend, position_encoding=kind)
    inputs = batch(masks)
    expected, output = (model(**inputs, output_attentions=True) for model in (eager, other))
    for name, S, T in (("encoder_attentions", 6, 6), ("decoder_attentions", 5, 5), ("cross_attentions", 6, 5)):
        assert [x.shape for x in output[name]] == [(3, 2, T, S)] * 2
        for weights, others in zip(output[name], expected[name], strict=True):
            assert torch.equal(weights, others)
            sums = weights.sum(-1)
            assert ((sums - 1).abs().lt(1e-5) | (sums == 0)).all()
    assert torch.equal(output.logits, expected.logits)
    assert_near(other(**inputs).logits, expected.logits)


def count(monkeypatch, backend: str) -> list:
    """Calls of a backend's function."""
    calls = []
    function = AttentionInterface()[backend]
    monkeypatch.setitem(
        AttentionInterface._global_mapping,
        backend,
        lambda *args, **kwargs: (calls.append(backend), function(*args, **kwargs))[1],
    )
    return calls


@pytest.mark.parametrize("backend", ["sdpa", "flex_attention"])
@torch.no_grad()
def test_only_the_call_that_wants_weights_runs_on_eager_and_one_warning_says_so(
    twins, monkeypatch, warnings_of, backend
):
    other = twins(backend)[1]
    calls = count(monkeypatch, backend)
    inputs = batch("left")
    other(**inputs)
    assert (len(calls), warnings_of()) == (6, [])
    other(**inputs, output_attentions=True)
    other(**inputs, output_attentions=True)
    assert len(calls) == 6
    assert warnings_of() == [f"{backend} gives no attention weights: calls with output_attentions=True run on eager"]
    assert other(**inputs).decoder_attentions is None
    assert len(calls) == 12
    assert other.config._attn_implementation == backend


@torch.no_grad()
def test_weights_asked_for_on_eager_warn_of_nothing(twins, warnings_of):
    twins("sdpa")[0](**batch("left"), output_attentions=True)
    assert warnings_of() == []


@pytest.mark.parametrize(("backend", "num_beams"), [("sdpa", 1), ("sdpa", 2), ("flex_attention", 2)])
def test_generation_gives_attention_weights_on_any_backend(twins, monkeypatch, warnings_of, backend, num_beams):
    eager, other = twins(backend)
    ids, mask = random_padded([5, 3])
    settings = {"max_new_tokens": 4, "min_new_tokens": 4, "num_beams": num_beams, "no_repeat_ngram_size": 1}
    asked = {"output_attentions": True, "return_dict_in_generate": True}
    expected, output = (model.generate(ids, attention_mask=mask, **settings, **asked) for model in (eager, other))
    assert torch.equal(output.sequences, expected.sequences)
    for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        flat = [
            [weights for step in result[name] for weights in (step if isinstance(step, tuple) else [step])]
            for result in (output, expected)
        ]
        assert len(flat[0]) == (2 if name == "encoder_attentions" else 8)
        torch.testing.assert_close(*flat, rtol=1e-5, atol=1e-6)
    assert len(warnings_of()) == 1
    calls = count(monkeypatch, backend)
    assert torch.equal(other.generate(ids, attention_mask=mask, **settings), expected.sequences)
    assert len(calls) == 2 + 4 * 4


def test_weights_of_a_training_step_have_gradients(twins):
    """On eager for the call, so that something may be learned from them."""
    other = twins("sdpa")[1].train()
    output = other(**batch("right"), output_attentions=True)
    output.cross_attentions[1].square().sum().backward()
    assert other.model.decoder.layers[1].encoder_attn.q_proj.weight.grad.abs().sum() > 0


# --- caches ---

every_cache = pytest.mark.parametrize("cache", [{"use_cache": False}, {}, {"cache_implementation": "static"}], ids=str)
# No token twice, or there would be little to compare; no padding, which the prefixes' own would forbid some of them.
STEPS = {"max_new_tokens": 7, "min_new_tokens": 7, "no_repeat_ngram_size": 1, "suppress_tokens": [0]}


def cache_of(config, name: str, length: int) -> EncoderDecoderCache:
    own = StaticCache(config=config, max_cache_len=length) if name == "static" else DynamicCache(config=config)
    return EncoderDecoderCache(own, DynamicCache(config=config))


@pytest.mark.parametrize(
    ("kind", "backend", "pieces", "side"),
    [
        (kind, *how)
        for kind in POSITION_ENCODINGS
        for how in (
            *(("sdpa", pieces, side) for pieces in ([1] * 6, [3, 1, 2]) for side in (None, "left")),
            ("eager", [1] * 6, "left"),
            ("own_with_bias", [3, 1, 2], "left"),
            ("flex_attention", [3, 1, 2], "left"),
        )
        if how[0] != "flex_attention" or kind in ("rotary", "alibi")
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["dynamic", "static"])
@torch.no_grad()
def test_cached_decoding_equals_uncached(twins, kind, backend, pieces, side, name):
    """With prefixes padded on the left too, of which one has no token until the second piece."""
    model = twins(backend, position_encoding=kind)[1]
    source, mask = random_padded([5, 3, 4])
    target, target_mask = random_padded([6, 4, 1], side or "left")
    if side is None:
        target_mask = torch.ones_like(target_mask)
    inputs = {"input_ids": source, "attention_mask": mask}
    expected = model(**inputs, decoder_input_ids=target, decoder_attention_mask=target_mask, use_cache=False).logits
    cache, end, logits = cache_of(model.config, name, 8), 0, []
    for piece in target.split(pieces, 1):
        end += piece.shape[1]
        so_far = None if side is None else target_mask[:, :end]
        output = model(**inputs, decoder_input_ids=piece, decoder_attention_mask=so_far, cache=cache, use_cache=True)
        logits.append(output.logits)
    assert_near(torch.cat(logits, 1), expected)


@pytest.mark.parametrize(("kind", "num_beams"), [*((kind, 1) for kind in POSITION_ENCODINGS), ("rotary", 3)])
@every_cache
def test_generation_after_prefixes_padded_on_the_left_is_what_each_gets_alone(twins, kind, cache, num_beams):
    model = twins("sdpa", position_encoding=kind)[1]
    source, mask = random_padded([5, 3, 4])
    prefixes = [torch.tensor(prefix) for prefix in ([1, 9, 4, 11], [1, 7], [1])]
    target, target_mask = padded(prefixes, "left")
    settings = STEPS | {"num_beams": num_beams}
    together = model.generate(
        source, attention_mask=mask, decoder_input_ids=target, decoder_attention_mask=target_mask, **settings, **cache
    )
    for b, prefix in enumerate(prefixes):
        ids = source[b : b + 1, : mask[b].sum()]
        alone = model.generate(ids, decoder_input_ids=prefix[None], **settings, use_cache=False)
        assert together[b, 4 - len(prefix) :].tolist() == alone[0].tolist()


def test_a_decoder_mask_without_the_cached_tokens_is_refused(twins):
    model = twins("sdpa")[1]
    source, target = torch.randint(3, 20, (2, 4)), torch.randint(3, 20, (2, 3))
    cache = model(source, decoder_input_ids=target, use_cache=True).cache
    with pytest.raises(ValueError, match="covers 1 positions, but the input ends at 4"):
        model(
            source,
            decoder_input_ids=target[:, :1],
            decoder_attention_mask=torch.ones(2, 1),
            cache=cache,
        )


@pytest.mark.parametrize("name", ["dynamic", "static"])
@every_kind
@torch.no_grad()
def test_only_a_learned_table_ends(twins, kind, name):
    """Six positions, of a table of four: the others go on as a model with a longer table does."""
    short, long = (twins("sdpa", position_encoding=kind, max_position_embeddings=P)[1] for P in (4, 64))
    source, target = torch.randint(3, 20, (2, 3)), torch.randint(3, 20, (2, 6))

    def run(model):
        cache = cache_of(model.config, name, 6)
        steps = [model(source, decoder_input_ids=piece, cache=cache, use_cache=True) for piece in target.split(2, 1)]
        return torch.cat([step.logits for step in steps], 1)

    if kind == "learned":
        with pytest.raises(ValueError, match=r"6 positions are more than the 4 .*fewer new tokens"):
            run(short)
        run(long)
    else:
        long.load_state_dict(short.state_dict())
        assert_near(run(short), long(source, decoder_input_ids=target).logits)


@every_cache
@every_kind
def test_generation_goes_on_past_the_table_unless_it_was_learned(twins, kind, cache):
    short, long = (twins("sdpa", position_encoding=kind, max_position_embeddings=P)[1] for P in (4, 64))
    source = torch.randint(3, 20, (2, 3))
    if kind == "learned":
        with pytest.raises(ValueError, match=r"positions are more than the 4 .*fewer new tokens"):
            short.generate(source, **STEPS, **cache)
    else:
        long.load_state_dict(short.state_dict())
        expected = long.generate(source, **STEPS, use_cache=False)
        assert torch.equal(short.generate(source, **STEPS, **cache), expected)


@pytest.mark.parametrize("backend", ["flex_attention", "own", "own_with_bias"])
@every_cache
def test_generation_is_eagers_on_any_backend(twins, backend, cache):
    eager, other = twins(backend, position_encoding="rotary")
    source, mask = random_padded([5, 3, 4])
    expected = eager.generate(source, attention_mask=mask, **STEPS, use_cache=False)
    assert torch.equal(other.generate(source, attention_mask=mask, **STEPS, **cache), expected)


@every_kind
def test_gradient_checkpointing_gives_the_same_gradients_with_every_position(twins, kind):
    model = twins("sdpa", position_encoding=kind)[1].train()
    inputs = batch("left")
    expected = {name: x.clone() for name, x in gradients_of(model, inputs).items()}
    model.zero_grad()
    model.activation_checkpointing_enable()
    torch.testing.assert_close(gradients_of(model, inputs), expected, rtol=1e-6, atol=1e-7)


@every_kind
def test_eager_computes_what_the_model_says_in_half_precision_too(twins, kind):
    """bfloat16's logits lie about those of float32, as far as its 8 bits go."""
    half, _ = twins("eager", torch.bfloat16, position_encoding=kind)
    exact = copy.deepcopy(half).float()
    inputs = batch("left")
    expected = exact(**inputs).logits
    assert (half(**inputs).logits.float() - expected).norm() < 2**-5 * expected.norm()


def test_eager_reads_a_boolean_mask_as_an_added_one(twins):
    module = twins("eager")[0].model.encoder.layers[0].self_attn
    query, key, value = torch.randn(3, 2, 2, 3, 8)
    added = torch.zeros(KEEP.shape).masked_fill(~KEEP, torch.finfo(torch.float32).min)
    boolean, number = (eager_attention_forward(module, query, key, value, mask, 0.3)[0] for mask in (KEEP, added))
    seen = KEEP.any(-1)[:, 0]
    torch.testing.assert_close(boolean[seen], number[seen])


@pytest.mark.parametrize(
    ("dtype", "length", "expected"),
    [
        (torch.float32, 8, "sdpa"),
        (torch.bfloat16, 8, "eager"),
        (torch.bfloat16, 257, "sdpa"),
        (torch.bfloat16, 1, "sdpa"),
    ],
    ids=str,
)
def test_the_default_backend_depends_on_dtype_and_length(tiny_model, monkeypatch, dtype, length, expected):
    model, taken = tiny_model().to(dtype), []
    layer = model.model.encoder.layers[0].self_attn
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda *a, **k: (taken.append(k["attn_implementation"]), forward(*a, **k))[1])
    model.get_encoder()(torch.randint(3, model.config.vocab_size, (2, length)))
    assert taken == [expected]


def test_a_backend_asked_for_by_name_is_taken(tiny_model, monkeypatch):
    for model in (tiny_model(attn_implementation="sdpa"), tiny_model()):
        model.set_attn_implementation("sdpa")
        layer, taken = model.bfloat16().model.encoder.layers[0].self_attn, []
        forward = layer.forward
        monkeypatch.setattr(
            layer,
            "forward",
            lambda *a, _f=forward, _t=taken, **k: (_t.append(k["attn_implementation"]), _f(*a, **k))[1],
        )
        model.get_encoder()(torch.randint(3, model.config.vocab_size, (2, 8)))
        assert taken == ["sdpa"]


# --- flash attention, which no CPU has: the library's wrapper around a kernel that does the same sums ---


def dense_kernel(query, key, value, softmax_scale=None, causal=False, **kwargs):
    """`(B, T, H, K)`, as flash-attn has it; a causal mask is aligned with the last key."""
    T, S = query.shape[1], key.shape[1]
    mask = torch.ones(T, S, dtype=torch.bool).tril(S - T) if causal else None
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=softmax_scale).transpose(
        1, 2
    )


def unpadded_kernel(query, key, value, cu_seqlens_q, cu_seqlens_k, softmax_scale=None, causal=False, **kwargs):
    """Sentences one after the other, `(tokens, H, K)`, each from one place in `cu_seqlens` to the next."""
    ends = [list(pairwise(places.tolist())) for places in (cu_seqlens_q, cu_seqlens_k)]
    return torch.cat([
        dense_kernel(query[None, a:b], key[None, c:d], value[None, c:d], softmax_scale, causal)[0]
        for (a, b), (c, d) in zip(*ends, strict=True)
    ])  # fmt: skip


@pytest.fixture
def flash(monkeypatch):
    """A backend of the library's own code for flash attention, but for the kernels."""
    process = flash_utils._lazy_define_process_function(unpadded_kernel)
    kernels = (dense_kernel, unpadded_kernel, None, flash_utils._pad_input, flash_utils._unpad_input)
    for module in (flash_utils, transformers.modeling_utils):
        monkeypatch.setattr(module, "lazy_import_flash_attention", lambda *_, **__: (kernels, (process, None)))
    AttentionInterface.register("flash_in_python", flash_attention_forward)
    AttentionMaskInterface.register("flash_in_python", flash_attention_mask)
    return "flash_in_python"


@pytest.mark.parametrize(("S", "T"), [(6, 6), (8, 5), (5, 8), (5, 1)])
def test_flash_attention_to_a_padded_source_is_eagers(lively, flash, S, T):
    """The library unpads the queries by the mask that it is given, which in cross attention is the source's."""
    eager = lively(attn_implementation="eager")
    other = copy.deepcopy(eager)
    other.set_attn_implementation(flash)
    ids, mask = random_padded([S, S // 2, 1])
    labels = torch.randint(3, 20, (3, T))
    with torch.no_grad():
        expected, found = (model(ids, mask, labels=labels).logits for model in (eager, other))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_beams_on_flash_attention_are_eagers(lively, flash):
    eager = lively(attn_implementation="eager")
    other = copy.deepcopy(eager)
    other.set_attn_implementation(flash)
    ids, mask = random_padded([6, 3, 2])
    settings = {"num_beams": 3, "max_new_tokens": 7, "no_repeat_ngram_size": 1}
    expected, found = (model.generate(ids, attention_mask=mask, **settings) for model in (eager, other))
    assert torch.equal(found, expected)
