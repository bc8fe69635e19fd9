"""VanillaAttention against torch.nn.MultiheadAttention and against equation 1, on both backends, cached and not.

Shapes: `B` sentences, `T` query and `S` key positions, `D` d_model, `H` heads, `K` d_k, `V` d_v.
"""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, EncoderDecoderCache, StaticCache
from transformers.masking_utils import eager_mask

from modeling_vanilla.attention import VanillaAttention, eager_attention_forward

BACKENDS = ["eager", "sdpa"]
HEADS = [(1, 2), (2, 3), (4, 1), (2, 5), (3, 2), (2, 8)]  # heads and their size; D is even

TOLERANCE = {
    torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.float64: {"rtol": 1e-5, "atol": 1e-5},
    torch.bfloat16: {"rtol": 0.05, "atol": 0.05},
}  # fmt: skip

both_backends = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(scope="session")
def attention_of(tiny_config):
    def build(backend="eager", num_heads=2, is_causal=False, layer_idx=0, **settings):
        config = tiny_config(
            attn_implementation=backend, encoder_attention_heads=1, decoder_attention_heads=1, **settings
        )
        module = VanillaAttention(config, num_heads, is_causal=is_causal, layer_idx=layer_idx).eval()
        with torch.no_grad():
            for parameter in module.parameters():
                nn.init.normal_(parameter, std=0.5)
        return module

    return build


def torchs(module: VanillaAttention) -> nn.MultiheadAttention:
    """PyTorch's module with the same weights."""
    D = module.out_proj.out_features
    mha = nn.MultiheadAttention(D, module.num_heads, bias=module.q_proj.bias is not None, batch_first=True)
    projections = (module.q_proj, module.k_proj, module.v_proj)
    with torch.no_grad():
        mha.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        mha.out_proj.weight.copy_(module.out_proj.weight)
        if mha.in_proj_bias is not None:
            mha.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
            mha.out_proj.bias.copy_(module.out_proj.bias)
    return mha.train()  # no dropout in it; evaluation would take another, fused path


def mask_for(backend: str, keep: torch.Tensor) -> torch.Tensor:
    """`keep`, true where a key may be looked at, as this backend wants it: added to the scores, or boolean."""
    return keep if backend == "sdpa" else torch.zeros(keep.shape).masked_fill(~keep, torch.finfo(torch.float32).min)


def causal(T: int) -> torch.Tensor:
    return torch.ones(T, T, dtype=torch.bool).tril()


def padded_keys(B: int, S: int) -> torch.Tensor:
    """`(B, S)`, true for tokens; every sentence has one at least, and they differ in length."""
    return torch.arange(S) < 1 + torch.arange(B)[:, None] * 2 % S


@both_backends
@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize(("num_heads", "size"), HEADS)
@settings(max_examples=10, deadline=None)
@given(B=st.integers(1, 3), T=st.integers(1, 6), S=st.integers(1, 7), is_cross=st.booleans(), is_masked=st.booleans())
def test_it_is_torchs_multihead_attention(
    attention_of, backend, use_bias, num_heads, size, B, T, S, is_cross, is_masked
):
    module = attention_of(backend, num_heads, d_model=num_heads * size, use_bias=use_bias)
    x = torch.randn(B, T, num_heads * size)
    states = torch.randn(B, S, num_heads * size) if is_cross else x
    keep = padded_keys(B, states.shape[1])
    output, _ = module(x, states if is_cross else None, mask_for(backend, keep[:, None, None]) if is_masked else None)
    expected, _ = torchs(module)(x, states, states, key_padding_mask=~keep if is_masked else None)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


@both_backends
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize(("num_heads", "size"), HEADS)
@pytest.mark.parametrize(("B", "T"), [(1, 1), (1, 5), (3, 4)])
def test_causal_attention_is_torchs(attention_of, backend, num_heads, size, B, T, is_padded):
    module = attention_of(backend, num_heads, is_causal=True, d_model=num_heads * size)
    x = torch.randn(B, T, num_heads * size)
    keep = padded_keys(B, T) if is_padded else torch.ones(B, T, dtype=torch.bool)
    output, _ = module(x, attention_mask=mask_for(backend, causal(T) & keep[:, None, None]))
    expected, _ = torchs(module)(x, x, x, key_padding_mask=~keep, attn_mask=~causal(T))
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


def test_sdpa_without_a_mask_is_causal_where_the_module_is(attention_of):
    module = attention_of("sdpa", is_causal=True)
    x = torch.randn(2, 5, 16)
    expected, _ = torchs(module)(x, x, x, attn_mask=~causal(5))
    torch.testing.assert_close(module(x)[0], expected, rtol=1e-5, atol=1e-5)


def test_sdpa_without_a_mask_looks_everywhere_where_the_module_is_not_causal(attention_of):
    module = attention_of("sdpa", is_causal=False)
    x, states = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    expected, _ = torchs(module)(x, states, states)
    torch.testing.assert_close(module(x, states)[0], expected, rtol=1e-5, atol=1e-5)


def test_eager_weights_are_torchs(attention_of):
    module = attention_of("eager", 4)
    x, states = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
    _, expected = torchs(module)(x, states, states, average_attn_weights=False)
    torch.testing.assert_close(module(x, states)[1], expected, rtol=1e-5, atol=1e-5)


def test_sdpa_gives_no_weights(attention_of):
    assert attention_of("sdpa")(torch.randn(2, 3, 16))[1] is None


def gradients_of(module, x, states, mask):
    x, states = x.clone().requires_grad_(), states.clone().requires_grad_()
    output, _ = module(x, states, mask)
    (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
    return [output.detach(), x.grad, states.grad, *(parameter.grad for parameter in module.parameters())]


@pytest.mark.parametrize("sizes", [{}, {"d_k": 3, "d_v": 5}], ids=str)
@pytest.mark.parametrize(("B", "T", "S"), [(1, 1, 1), (2, 3, 5), (3, 4, 2)])
def test_eager_and_sdpa_agree_in_outputs_and_gradients(attention_of, B, T, S, sizes):
    modules = {backend: attention_of(backend, **sizes) for backend in BACKENDS}
    modules["sdpa"].load_state_dict(modules["eager"].state_dict())
    x, states, keep = torch.randn(B, T, 16), torch.randn(B, S, 16), padded_keys(B, S)[:, None, None].expand(B, 1, T, S)
    eager, sdpa = (gradients_of(module, x, states, mask_for(name, keep)) for name, module in modules.items())
    torch.testing.assert_close(sdpa, eager, rtol=1e-5, atol=1e-5)


@both_backends
@pytest.mark.parametrize(("d_k", "d_v"), [(3, 5), (5, 3), (1, 16), (16, 1), (3, None), (None, 3)])
def test_keys_and_values_may_differ_in_size(attention_of, backend, d_k, d_v):
    H = 4
    module = attention_of(backend, H, d_k=d_k, d_v=d_v)
    x, states, keep = torch.randn(2, 3, 16), torch.randn(2, 5, 16), padded_keys(2, 5)
    q, k, v = (
        nn.functional.linear(inputs, p.weight, p.bias).unflatten(-1, (H, -1))
        for inputs, p in ((x, module.q_proj), (states, module.k_proj), (states, module.v_proj))
    )  # (B, T, H, K), (B, S, H, K), (B, S, H, V)
    assert (q.shape[-1], v.shape[-1]) == (d_k or 4, d_v or 4)
    scores = torch.einsum("bthk,bshk->bhts", q, k) / (d_k or 4) ** 0.5
    weights = scores.masked_fill(~keep[:, None, None], -torch.inf).softmax(-1)
    heads = torch.einsum("bhts,bshv->bthv", weights, v).flatten(2)
    expected = nn.functional.linear(heads, module.out_proj.weight, module.out_proj.bias)
    output, _ = module(x, states, mask_for(backend, keep[:, None, None]))
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)


def caches(config) -> dict:
    return {
        "dynamic": DynamicCache(config=config),
        "encoder-decoder": EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config)),
        "static": StaticCache(config=config, max_cache_len=6),
    }


@both_backends
@pytest.mark.parametrize("name", ["dynamic", "encoder-decoder", "static"])
@pytest.mark.parametrize("sizes", [{}, {"d_k": 3, "d_v": 5}], ids=str)
def test_step_by_step_with_a_cache_equals_all_at_once(attention_of, backend, name, sizes):
    module = attention_of(backend, 2, is_causal=True, **sizes)
    cache = caches(module.config)[name]
    x = torch.randn(2, 6, 16)
    at_once, _ = module(x, attention_mask=mask_for(backend, causal(6)[None, None]))
    S = 6 if name == "static" else None  # a static cache hands out all its places, those still empty too
    steps = []
    for t in range(6):
        keep = causal(6)[t, : S or t + 1].expand(2, 1, 1, -1)
        steps.append(module(x[:, t : t + 1], attention_mask=mask_for(backend, keep), cache=cache)[0])
    torch.testing.assert_close(torch.cat(steps, 1), at_once, rtol=1e-5, atol=1e-5)


@both_backends
def test_several_tokens_may_follow_a_cached_prefix(attention_of, backend):
    module = attention_of(backend, 2, is_causal=True)
    cache = DynamicCache(config=module.config)
    x = torch.randn(2, 6, 16)
    at_once, _ = module(x, attention_mask=mask_for(backend, causal(6)[None, None]))
    pieces = [
        module(x[:, a:b], attention_mask=mask_for(backend, causal(6)[None, None, a:b, :b]), cache=cache)[0]
        for a, b in ((0, 2), (2, 5), (5, 6))
    ]
    torch.testing.assert_close(torch.cat(pieces, 1), at_once, rtol=1e-5, atol=1e-5)


def count_calls(module: nn.Module) -> list:
    calls = []
    module.register_forward_hook(lambda *_: calls.append(1))
    return calls


def test_cross_attention_projects_the_source_once(attention_of):
    module = attention_of("eager")
    cache = caches(module.config)["encoder-decoder"]
    calls = [count_calls(module.k_proj), count_calls(module.v_proj)]
    states, x = torch.randn(2, 5, 16), torch.randn(2, 4, 16)
    expected = module(x, states)[0]
    for t in range(4):
        output, _ = module(x[:, t : t + 1], states, cache=cache)
        torch.testing.assert_close(output[:, 0], expected[:, t], rtol=1e-5, atol=1e-5)
    assert [len(c) for c in calls] == [2, 2]  # once without the cache, once with it
    assert cache.self_attention_cache.get_seq_length() == 0


@pytest.mark.parametrize("cache_implementation", ["dynamic", "static"])
def test_generation_projects_the_source_once_in_every_layer(tiny_model, cache_implementation):
    model = tiny_model(decoder_layers=2)
    calls = [count_calls(layer.encoder_attn.k_proj) for layer in model.model.decoder.layers]
    steps = count_calls(model.model.decoder.layers[0].encoder_attn.q_proj)
    model.generate(
        torch.tensor([[5, 6, 7]]), max_new_tokens=5, min_new_tokens=5, cache_implementation=cache_implementation
    )
    assert len(steps) == 5
    assert [len(c) for c in calls] == [1, 1]


@both_backends
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_row_without_any_key_is_finite(attention_of, backend, is_causal):
    module = attention_of(backend, is_causal=is_causal)
    x = torch.randn(2, 3, 16, requires_grad=True)
    keep = torch.tensor([[True, True, False], [False, False, False]])[:, None, None].expand(2, 1, 3, 3)
    output, _ = module(x, attention_mask=mask_for(backend, keep))
    output.sum().backward()
    assert output.isfinite().all()
    assert x.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


@both_backends
def test_a_later_target_token_changes_nothing_before_it(tiny_model, backend):
    model = tiny_model(attn_implementation=backend)
    source, target = torch.randint(3, 20, (2, 5)), torch.randint(3, 20, (2, 7))
    logits = model(input_ids=source, decoder_input_ids=target).logits
    for t in range(6):
        changed = target.clone()
        changed[:, t + 1] = 3 + (changed[:, t + 1] - 2) % 17
        other = model(input_ids=source, decoder_input_ids=changed).logits
        torch.testing.assert_close(other[:, : t + 1], logits[:, : t + 1], rtol=1e-6, atol=1e-6)
        assert (other[:, t + 1] - logits[:, t + 1]).abs().max() > 1e-3


@both_backends
def test_a_source_token_changes_every_encoder_position(tiny_model, backend):
    encoder = tiny_model(attn_implementation=backend).model.encoder
    source = torch.tensor([[5, 6, 7, 8]])
    changed = torch.tensor([[5, 6, 7, 9]])
    difference = (encoder(source).last_hidden_state - encoder(changed).last_hidden_state).abs().amax(-1)
    assert (difference > 1e-4).all()


@both_backends
def test_padding_on_the_right_changes_nothing(tiny_model, backend):
    model = tiny_model(attn_implementation=backend)
    source, target = torch.randint(3, 20, (2, 5)), torch.randint(3, 20, (2, 6))
    alone = model(input_ids=source, decoder_input_ids=target).logits
    pad = torch.zeros(2, 3, dtype=torch.long)
    mask = torch.cat([torch.ones_like(source), pad], 1)
    padded = model(
        input_ids=torch.cat([source, pad], 1),
        attention_mask=mask,
        decoder_input_ids=torch.cat([target, pad], 1),
    ).logits
    torch.testing.assert_close(padded[:, :6], alone, rtol=1e-5, atol=1e-5)


@both_backends
@pytest.mark.parametrize("pad_token_id", [0, 19])
def test_what_stands_in_masked_places_does_not_matter(tiny_model, backend, pad_token_id):
    model = tiny_model(attn_implementation=backend, pad_token_id=pad_token_id)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    source = torch.randint(3, 19, (2, 5))
    other = torch.where(mask.bool(), source, torch.randint(3, 19, (2, 5)))
    target = torch.randint(3, 19, (2, 4))
    logits = [
        model(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits
        for ids in (source, other, source.masked_fill(mask == 0, pad_token_id))
    ]
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(logits[2], logits[0], rtol=1e-6, atol=1e-6)


def test_attention_dropout_is_on_the_weights_while_training_only(attention_of):
    module = attention_of("eager", attention_dropout=0.5)
    x = torch.randn(4, 20, 16)
    kept = module(x)[1]
    dropped = module.train()(x)[1]
    share = (dropped == 0).double().mean()
    assert 0.4 < share < 0.6
    torch.testing.assert_close(dropped[dropped != 0], 2 * kept[dropped != 0], rtol=1e-5, atol=0)


def test_sdpa_drops_weights_while_training_only(attention_of):
    module = attention_of("sdpa", attention_dropout=0.5)
    x = torch.randn(4, 20, 16)
    assert torch.equal(module(x)[0], module(x)[0])
    module.train()
    assert not torch.equal(module(x)[0], module(x)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("S", [1, 2, 14, 15, 16, 17, 40])
def test_weights_and_gradients_are_the_formulas_at_any_number_of_keys(attention_of, S, dtype):
    """Short rows are padded before the softmax; the library's mask gives masked keys the lowest number there is."""
    query, key, value = (torch.randn(2, 3, n, 5, dtype=dtype, requires_grad=True) for n in (4, S, S))
    mask = torch.zeros(2, 1, 4, S)
    mask[0, :, :, S // 2 + 1 :] = torch.finfo(torch.float32).min
    output, weights = eager_attention_forward(attention_of(), query, key, value, mask, scaling=0.5)
    exact = [x.detach().double().requires_grad_() for x in (query, key, value)]
    raised = (exact[0] @ exact[1].mT * 0.5 + mask).exp()
    expected = raised / raised.sum(-1, keepdim=True)
    close = partial(torch.testing.assert_close, check_dtype=False, **TOLERANCE[dtype])
    assert weights.shape == (2, 3, 4, S)
    assert weights.dtype == dtype
    close(weights, expected)
    direction = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    (output * direction).sum().backward()
    ((expected @ exact[2]).transpose(1, 2) * direction).sum().backward()
    for x, same in zip((query, key, value), exact, strict=True):
        close(x.grad, same.grad)


def test_half_precision_takes_its_softmax_in_float32(attention_of):
    query, key, value = (torch.randn(2, 2, 300, 8).bfloat16() for _ in range(3))
    _, weights = eager_attention_forward(attention_of(), query, key, value, None, scaling=0.5)
    scores = query @ key.transpose(2, 3) * 0.5
    assert torch.equal(weights, scores.float().softmax(-1).bfloat16())


def test_a_registered_backend_is_called(attention_of):
    calls = []

    def counted(*args, **kwargs):
        calls.append(kwargs["scaling"])
        return eager_attention_forward(*args, **kwargs)

    AttentionInterface.register("counted", counted)
    AttentionMaskInterface.register("counted", eager_mask)
    module = attention_of("eager", 2, d_k=4)
    x = torch.randn(1, 3, 16)
    expected = module(x)[0]
    module.config._attn_implementation = "counted"
    assert torch.equal(module(x)[0], expected)
    assert calls == [0.5]  # 1 / sqrt(d_k)


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"d_k": 3, "d_v": 5}], ids=str)
def test_one_product_for_all_projections_equals_three(tiny_config, use_bias, sizes):
    attention = VanillaAttention(tiny_config(use_bias=use_bias, **sizes), 2)
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    x = torch.randn(3, 4, attention.config.d_model)
    together = attention.project(x, *projections)
    for one, projection in zip(together, projections, strict=True):
        torch.testing.assert_close(one, projection(x), rtol=1e-6, atol=1e-6)
        gradient = torch.randn_like(one)
        expected = torch.autograd.grad(projection(x), projection.weight, gradient)
        found = torch.autograd.grad(one, projection.weight, gradient, retain_graph=True)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_hook_or_an_adapter_on_a_projection_is_called(tiny_config):
    class Adapter(torch.nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.weight, self.bias, self.out_features = base, base.weight, base.bias, base.out_features

        def forward(self, x):
            return self.base(x) + 1

    attention, calls = VanillaAttention(tiny_config(), 2), []
    x = torch.randn(1, 4, attention.config.d_model)
    plain = attention.project(x, attention.q_proj, attention.k_proj)
    attention.q_proj.register_forward_hook(lambda *_: calls.append(1))
    attention.k_proj = Adapter(attention.k_proj)
    adapted = attention.project(x, attention.q_proj, attention.k_proj)
    assert calls == [1]
    torch.testing.assert_close(adapted[0], plain[0])
    torch.testing.assert_close(adapted[1], plain[1] + 1)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_neighbours_may_share_a_source(tiny_model, backend):
    model = tiny_model(attn_implementation=backend)
    V = model.config.vocab_size
    source, target = torch.randint(3, V, (2, 5)), torch.randint(3, V, (6, 4))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    states = model.get_encoder()(source, mask).last_hidden_state
    shared = model(attention_mask=mask, encoder_outputs=(states,), decoder_input_ids=target, output_attentions=True)
    each = {"attention_mask": mask.repeat_interleave(3, 0), "encoder_outputs": (states.repeat_interleave(3, 0),)}
    repeated = model(**each, decoder_input_ids=target, output_attentions=True)
    torch.testing.assert_close(shared.logits, repeated.logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(shared.cross_attentions, repeated.cross_attentions, rtol=1e-5, atol=1e-6)
