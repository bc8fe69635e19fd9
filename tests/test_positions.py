"""
Positions of every kind against the formulas, written out one number at a time, and against other implementations.

Shapes: `B` sentences, `L` positions, `H` heads, `K` d_k.
"""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.bart.modeling_bart import BartLearnedPositionalEmbedding
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.roformer.modeling_roformer import (
    RoFormerSelfAttention,
    RoFormerSinusoidalPositionalEmbedding,
)

from modeling_vanilla.positions import (
    LearnedPositions,
    SinusoidalPositions,
    alibi_bias,
    count_tokens,
    rotate,
    sinusoids,
)
from tests.fixtures import POSITION_ENCODINGS, padded, random_padded

LAYOUTS = ["interleaved", "halves", "tensor2tensor"]


def formula(position: int, dim: int, layout: str) -> list[float]:
    if layout == "tensor2tensor":  # get_timing_signal_1d: min_timescale 1, max_timescale 10000, sines then cosines
        step = math.log(10000.0) / (dim // 2 - 1)
        angles = [position * math.exp(-i * step) for i in range(dim // 2)]
        return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
    row = [0.0] * dim
    for i in range(dim // 2):  # section 3.5
        angle = position / 10000 ** (2 * i / dim)
        where = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, dim // 2 + i)
        row[where[0]], row[where[1]] = math.sin(angle), math.cos(angle)
    return row


def table_of(positions: range, dim: int, layout: str) -> torch.Tensor:
    """The formula's numbers, rounded once to float32."""
    return torch.tensor([formula(position, dim, layout) for position in positions], dtype=torch.float64).float()


def assert_rounded_alike(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal but for the last bit, which the order of the operations in float64 may tip."""
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=0, atol=2**-23)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [4, 6, 64, 512])
def test_the_table_is_the_formula(layout, dim):
    assert_rounded_alike(sinusoids(torch.arange(40), dim, layout), table_of(range(40), dim, layout))


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_a_width_of_two_is_one_sine_and_one_cosine(layout):
    assert_rounded_alike(sinusoids(torch.arange(5), 2, layout), table_of(range(5), 2, layout))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_far_positions_keep_their_phase(layout):
    far = range(99_990, 100_000)
    assert_rounded_alike(sinusoids(torch.arange(99_990, 100_000), 16, layout), table_of(far, 16, layout))


def test_the_halves_layout_is_marians():
    marian = MarianSinusoidalPositionalEmbedding(50, 32)
    marian.weight.data = marian.create_weight()
    torch.testing.assert_close(sinusoids(torch.arange(50), 32, "halves"), marian.weight.data.float())


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
def test_positions_of_any_type_and_shape_are_read(dtype):
    positions = torch.tensor([[3, 1], [4, 1]], dtype=dtype)
    table = sinusoids(positions, 8)
    assert table.shape == (2, 2, 8)
    assert_rounded_alike(table[1, 0], table_of(range(4, 5), 8, "interleaved")[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_module_counts_from_its_offset(layout):
    rows = SinusoidalPositions(10, 8, layout, offset=2)(0, 6)
    assert_rounded_alike(rows, table_of(range(2, 8), 8, layout))


@pytest.mark.parametrize("start", [0, 3, torch.tensor(0), torch.tensor(3), torch.tensor(3, dtype=torch.int32)], ids=str)
def test_rows_begin_at_start(start):
    rows = SinusoidalPositions(10, 8)(start, 4)
    assert_rounded_alike(rows, table_of(range(int(start), int(start) + 4), 8, "interleaved"))


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize(("start", "length"), [(0, 11), (10, 1), (8, 5), (100, 3)])
def test_the_table_grows_past_its_end(start, length, offset):
    rows = SinusoidalPositions(10, 8, offset=offset)(start, length)
    assert_rounded_alike(rows, table_of(range(start + offset, start + length + offset), 8, "interleaved"))


def test_growth_at_least_doubles_the_table():
    positions = SinusoidalPositions(10, 8)
    sizes = set()
    for start in range(100):  # as in generation: a position a step
        positions(start, 1)
        sizes.add(len(positions.table))
    assert sizes == {10, 20, 40, 80, 160}


def test_a_table_that_is_long_enough_is_left_alone():
    positions = SinusoidalPositions(10, 8)
    before = positions.table
    positions(2, 8)
    positions.reach(10)
    assert positions.table is before


def test_reach_makes_room_for_a_start_that_is_a_tensor():
    positions = SinusoidalPositions(4, 8)
    positions.reach(9)
    assert_rounded_alike(positions(torch.tensor(7), 2), table_of(range(7, 9), 8, "interleaved"))


@pytest.mark.parametrize(
    "cast",
    [
        lambda module: module.bfloat16(),
        lambda module: module.half(),
        lambda module: module.double(),
        lambda module: module.to(torch.bfloat16),
        lambda module: module.to("cpu", torch.float16),
    ],
    ids=["bfloat16", "half", "double", "to-bfloat16", "to-device-and-half"],
)
def test_a_cast_leaves_the_table_exact(cast):
    positions = SinusoidalPositions(300, 8, "halves", offset=1)
    before = positions.table.clone()
    parent = cast(torch.nn.Sequential(positions, torch.nn.Linear(2, 2)))
    assert parent[1].weight.dtype != torch.float32
    assert torch.equal(positions.table, before)
    assert positions.table.dtype == torch.float32


def test_a_cast_keeps_the_rows_that_were_grown():
    positions = SinusoidalPositions(4, 8)
    positions.reach(50)
    assert len(positions.bfloat16().table) == 50


def test_a_cast_on_the_meta_device_stays_there():
    with torch.device("meta"):
        positions = SinusoidalPositions(4, 8).bfloat16()
    assert positions.table.device.type == "meta"
    assert positions.table.dtype == torch.float32


def test_the_table_is_not_saved():
    assert SinusoidalPositions(4, 8).state_dict() == {}


def test_a_default_type_of_half_precision_does_not_touch_the_table():
    torch.set_default_dtype(torch.bfloat16)
    try:
        positions = SinusoidalPositions(300, 8)
    finally:
        torch.set_default_dtype(torch.float32)
    assert_rounded_alike(positions.table, table_of(range(300), 8, "interleaved"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_table_of_rotations_stays_exact_in_a_model_of_any_precision(tiny_model, tmp_path, dtype, layout):
    """One row a position, of the width of a key."""
    model = tiny_model(position_encoding="rotary", sinusoid_layout=layout, position_offset=3)
    model.save_pretrained(tmp_path)
    for cast in (type(model).from_pretrained(tmp_path, dtype=dtype), model.to(dtype)):
        for stack in (cast.model.encoder, cast.model.decoder):
            assert stack.embed_tokens.weight.dtype == dtype
            assert_rounded_alike(stack.embed_positions.table, table_of(range(32), 8, layout))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_loaded_through_the_meta_device_has_the_formulas_table(tiny_model, tmp_path, dtype):
    model = tiny_model(sinusoid_layout="halves", position_offset=3)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=dtype)
    for stack in (loaded.model.encoder, loaded.model.decoder):
        assert stack.embed_tokens.weight.dtype == dtype
        assert_rounded_alike(stack.embed_positions.table, table_of(range(3, 35), 16, "halves"))


@pytest.mark.parametrize("encoding", ["sinusoidal", "rotary"])
def test_a_table_grown_in_inference_mode_serves_training_later(tiny_model, encoding):
    model = tiny_model(position_encoding=encoding)
    ids = torch.randint(3, 20, (1, 40))
    with torch.inference_mode():
        model(input_ids=ids, decoder_input_ids=ids)
    model.train()(input_ids=ids, labels=ids).loss.backward()
    assert model.model.encoder.embed_tokens.weight.grad.abs().sum() > 0


# --- rotations ---


def llamas(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    config = LlamaConfig(
        hidden_size=x.shape[-1], num_attention_heads=1, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}
    )
    cos, sin = LlamaRotaryEmbedding(config)(x, positions)
    return apply_rotary_pos_emb(x, x, cos, sin)[0]


def roformers(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    table = RoFormerSinusoidalPositionalEmbedding(int(positions.max()) + 1, x.shape[-1])
    rows = table.create_weight()[positions][:, None]  # (B, 1, L, K)
    return RoFormerSelfAttention.apply_rotary_position_embeddings(rows, x, x)[0]


def turned(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The authors' wavelengths, and complex numbers of the first half and the second."""
    dim = x.shape[-1]
    step = math.log(10000.0) / (dim // 2 - 1)
    angles = positions.double()[:, None, :, None] * torch.tensor([math.exp(-i * step) for i in range(dim // 2)])
    numbers = torch.complex(*x.double().chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((numbers.real, numbers.imag), -1).float()


ROTATIONS = {"interleaved": roformers, "halves": llamas, "tensor2tensor": turned}


@pytest.mark.parametrize("layout", ROTATIONS)
@pytest.mark.parametrize(("B", "H", "L", "K"), [(1, 1, 1, 4), (2, 3, 5, 6), (3, 1, 7, 10), (1, 2, 300, 64)])
def test_rotation_is_another_implementations(layout, B, H, L, K):
    x = torch.randn(B, H, L, K)
    expected = ROTATIONS[layout](x, torch.arange(L).expand(B, L))
    # Llama's angles are float32: at position 299 they are off by up to 299 · 2^-24.
    torch.testing.assert_close(rotate(x, sinusoids(torch.arange(L), K, layout), layout), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
def test_a_key_of_two_numbers_turns_by_one_radian_a_position(layout):
    x = torch.tensor([1.0, 0.0]).expand(1, 1, 5, 2)
    expected = torch.tensor([[math.cos(t), math.sin(t)] for t in range(5)])[None, None]
    torch.testing.assert_close(rotate(x, sinusoids(torch.arange(5), 2, layout), layout), expected)


@pytest.mark.parametrize("layout", ROTATIONS)
def test_sentences_may_be_turned_by_positions_of_their_own(layout):
    x, positions = torch.randn(3, 2, 5, 8), torch.randint(0, 40, (3, 5))
    expected = ROTATIONS[layout](x, positions)
    torch.testing.assert_close(rotate(x, sinusoids(positions, 8, layout), layout), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("K", [4, 6, 64])
def test_the_product_of_query_and_key_depends_on_their_distance_alone(layout, K):
    query, key = torch.randn(2, 1, 1, 1, K)
    near, far = [
        rotate(query, sinusoids(torch.tensor([start + 3]), K, layout), layout)
        @ rotate(key, sinusoids(torch.tensor([start]), K, layout), layout).mT
        for start in (0, 5000)
    ]
    assert (near - query @ key.mT).abs() > 1e-3
    torch.testing.assert_close(far, near, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_first_position_is_not_turned(layout):
    x = torch.randn(2, 3, 1, 8)
    assert torch.equal(rotate(x, sinusoids(torch.tensor([0]), 8, layout), layout), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", ROTATIONS)
def test_half_precision_is_turned_in_float32_and_rounded_once(layout, dtype):
    x = torch.randn(2, 2, 300, 8).to(dtype)
    rows = sinusoids(torch.arange(300), 8, layout)
    turned = rotate(x, rows, layout)
    assert turned.dtype == dtype
    exact = ROTATIONS[layout](x.float(), torch.arange(300).expand(2, 300))
    spacing = torch.finfo(dtype).eps * exact.abs().clamp(min=torch.finfo(dtype).tiny)
    assert ((turned.float() - exact).abs() <= spacing / 2 + 1e-4).all()


def test_values_are_not_turned_and_neither_is_what_joins_encoder_and_decoder(tiny_model):
    """RoFormer turns queries and keys of self attention alone; there, one position by itself is turned by nothing."""
    rotary, learned = (tiny_model(position_encoding=kind) for kind in ("rotary", "learned"))
    learned.load_state_dict(rotary.state_dict(), strict=False)
    for stack in (learned.model.encoder, learned.model.decoder):
        stack.embed_positions.weight.data.zero_()
    source, target = torch.randint(3, 20, (4, 1)), torch.randint(3, 20, (4, 1))
    states = rotary.model.encoder(torch.randint(3, 20, (4, 6))).last_hidden_state
    expected = learned.model.decoder(target, encoder_hidden_states=states).last_hidden_state
    assert torch.equal(rotary.model.decoder(target, encoder_hidden_states=states).last_hidden_state, expected)
    assert torch.equal(rotary.model.encoder(source).last_hidden_state, learned.model.encoder(source).last_hidden_state)


# --- distances ---

SLOPES = {  # of the authors' get_slopes: a power of two's geometric row, then every second slope of the next power's
    1: [2**-8],
    2: [2**-4, 2**-8],
    4: [2**-2, 2**-4, 2**-6, 2**-8],
    6: [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3],
    8: [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8],
    12: [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
    16: [2 ** -(i / 2) for i in range(1, 17)],
}


@pytest.mark.parametrize("num_heads", SLOPES)
def test_alibi_lowers_scores_by_slope_times_distance(num_heads):
    bias = alibi_bias(num_heads, torch.arange(4), 6)
    assert bias.shape == (1, num_heads, 4, 6)
    expected = [[[-slope * abs(query - key) for key in range(6)] for query in range(4)] for slope in SLOPES[num_heads]]
    torch.testing.assert_close(bias[0], torch.tensor(expected))


@pytest.mark.parametrize("num_heads", [1, 2, 3, 5, 6, 7, 8, 12, 20, 32, 33])
def test_alibi_is_blooms_and_mpts_for_the_last_query(num_heads):
    """Theirs lack a constant in each row, which softmax does not see."""
    ours = alibi_bias(num_heads, torch.tensor([8]), 9)[0]  # (H, 1, 9)
    bloom = build_alibi_tensor(torch.ones(1, 9, dtype=torch.long), num_heads, torch.float32)
    torch.testing.assert_close(ours, bloom - bloom[..., -1:])
    torch.testing.assert_close(ours, build_mpt_alibi_tensor(num_heads, 9))


def test_alibi_is_symmetric():
    bias = alibi_bias(6, torch.arange(9), 9)
    assert torch.equal(bias, bias.mT)
    assert (bias.diagonal(dim1=-2, dim2=-1) == 0).all()


@pytest.mark.parametrize("start", [0, 3, 6])
def test_alibi_of_later_queries_is_the_lower_part_of_all(start):
    assert torch.equal(alibi_bias(3, torch.arange(start, 7), 7), alibi_bias(3, torch.arange(7), 7)[:, :, start:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_alibi_is_float32_whatever_the_default_type(dtype):
    expected = alibi_bias(12, torch.arange(300), 300)
    torch.set_default_dtype(dtype)
    try:
        bias = alibi_bias(12, torch.arange(300), 300)
    finally:
        torch.set_default_dtype(torch.float32)
    assert bias.dtype == torch.float32
    assert torch.equal(bias, expected)


def test_alibi_adds_nothing_to_the_embeddings_and_has_no_table(tiny_model):
    model = tiny_model(position_encoding="alibi")
    assert not [name for name in model.state_dict() if "position" in name]
    embeds = torch.randn(2, 5, 16)
    assert torch.equal(model.model.encoder.add_positions(embeds, 0, 5, None)[0], embeds * 4)


# --- learned positions ---


@pytest.mark.parametrize(("start", "length"), [(0, 10), (0, 1), (9, 1), (3, 4)])
def test_learned_rows_are_barts(start, length):
    bart, ours = BartLearnedPositionalEmbedding(10, 8), LearnedPositions(10, 8, offset=2)
    ours.load_state_dict(bart.state_dict())
    expected = bart(torch.zeros(1, length), start)[0]
    assert torch.equal(ours(start, length), expected)
    assert torch.equal(ours(torch.tensor(start), length), expected)


@pytest.mark.parametrize("offset", [0, 2])
def test_learned_rows_may_be_asked_for_one_by_one(offset):
    positions = LearnedPositions(10, 8, offset)
    asked = torch.tensor([[0, 0, 9], [3, 1, 2]])
    rows = positions(7, 3, asked)
    assert rows.shape == (2, 3, 8)
    for b in range(2):
        for t in range(3):
            assert torch.equal(rows[b, t], positions.weight[asked[b, t] + offset])


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize(("start", "length"), [(0, 11), (10, 1), (8, 5)])
def test_learned_positions_refuse_to_go_on_past_their_end(start, length, offset):
    positions = LearnedPositions(10, 8, offset)
    with pytest.raises(ValueError, match=rf"{start + length} positions are more than the 10 .*max_position_embeddings"):
        positions(start, length)


def test_learned_positions_reach_their_end_and_no_further():
    positions = LearnedPositions(10, 8, offset=3)
    positions.reach(10)
    with pytest.raises(ValueError, match="11 positions are more than the 10"):
        positions.reach(11)


def test_learned_positions_are_trained_where_they_are_used():
    positions = LearnedPositions(6, 4, offset=1)
    positions(1, 3).sum().backward()
    assert positions.weight.grad.tolist() == [[float(row in (2, 3, 4))] * 4 for row in range(7)]


def test_learned_positions_are_saved_and_start_as_loud_as_the_embeddings(tiny_model, tmp_path):
    model = tiny_model(position_encoding="learned", max_position_embeddings=4000, position_offset=2)
    for side in ("encoder", "decoder"):
        weight = model.state_dict()[f"model.{side}.embed_positions.weight"]
        assert weight.shape == (4002, 16)
        assert weight.std().item() == pytest.approx(1, rel=0.02)  # as sqrt(D) times embeddings from N(0, 1 / D)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16).state_dict()
    assert torch.equal(loaded["model.decoder.embed_positions.weight"], weight.bfloat16())


def test_a_learned_table_that_holds_the_sinusoids_is_the_sinusoidal_model(tiny_model):
    sinusoidal, learned = (tiny_model(position_encoding=kind) for kind in ("sinusoidal", "learned"))
    learned.load_state_dict(sinusoidal.state_dict(), strict=False)
    for side in ("encoder", "decoder"):
        getattr(learned.model, side).embed_positions.weight.data.copy_(table_of(range(32), 16, "interleaved"))
    source, target = torch.randint(3, 20, (2, 32)), torch.randint(3, 20, (2, 32))
    mask = torch.ones_like(source)
    mask[0, :9] = 0
    logits = [model(source, mask, decoder_input_ids=target).logits for model in (sinusoidal, learned)]
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-5, atol=1e-5)


# --- counting ---

PADDED = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]])


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize(("start", "length"), [(0, 5), (0, 1), (4, 1), (1, 3)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32], ids=str)
def test_tokens_are_counted_up_to_each_position(as_tensor, start, length, dtype):
    expected = [[sum(row[: t + 1]) for t in range(start, start + length)] for row in PADDED.tolist()]
    counts = count_tokens(PADDED.to(dtype), torch.tensor(start) if as_tensor else start, length)
    assert counts.dtype == torch.int64
    assert counts.tolist() == expected


@pytest.mark.parametrize(("start", "length"), [(0, 6), (5, 1), (4, 2)])
def test_a_mask_without_the_cached_tokens_is_refused(start, length):
    with pytest.raises(ValueError, match=f"covers 5 positions, but the input ends at {start + length}: .*cached"):
        count_tokens(PADDED, start, length)


every_kind = pytest.mark.parametrize("kind", POSITION_ENCODINGS)
LENGTHS = [5, 3, 1]


@every_kind
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_padding_on_either_side_leaves_a_sentence_as_it_is_alone(tiny_model, kind, side, stack):
    model = tiny_model(position_encoding=kind, position_offset=1)
    module = getattr(model.model, stack)
    sentences = [torch.randint(3, 20, (length,)) for length in LENGTHS]
    ids, mask = padded(sentences, side, extra=2)
    others = {} if stack == "encoder" else {"encoder_hidden_states": torch.randn(1, 4, 16)}
    states = module(ids, mask, **{name: x.expand(3, -1, -1) for name, x in others.items()}).last_hidden_state
    for b, sentence in enumerate(sentences):
        expected = module(sentence[None], **others).last_hidden_state[0]
        torch.testing.assert_close(states[b, mask[b].bool()], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "rotary"])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_given_position_ids_win_over_the_mask(tiny_model, kind, stack):
    model = tiny_model(position_encoding=kind)
    module = getattr(model.model, stack)
    ids, mask = random_padded(LENGTHS, "left", extra=2)
    counted = (mask.cumsum(-1) - 1).clamp(min=0)
    others = {} if stack == "encoder" else {"encoder_hidden_states": torch.randn(3, 4, 16)}

    def run(**settings):
        return module(ids, mask, **others, **settings).last_hidden_state[mask.bool()]

    torch.testing.assert_close(run(position_ids=counted), run())
    doubled = run(position_ids=2 * counted)
    assert (doubled - run()).abs().max() > 1e-3
    if kind == "rotary":  # whose positions are relative
        torch.testing.assert_close(run(position_ids=counted + 11), run(), rtol=1e-5, atol=1e-5)
    else:
        assert (run(position_ids=counted + 11) - run()).abs().max() > 1e-3


@every_kind
def test_the_order_of_words_matters(tiny_model, kind):
    encoder = tiny_model(position_encoding=kind).model.encoder
    ids = torch.randint(3, 20, (1, 6))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    difference = encoder(ids[:, order]).last_hidden_state - encoder(ids).last_hidden_state[:, order]
    assert difference.abs().max() > 1e-3


@every_kind
def test_the_longest_input_is_as_long_as_the_config_says(tiny_model, kind):
    model = tiny_model(position_encoding=kind, max_position_embeddings=7, position_offset=2)
    ids = torch.randint(3, 20, (2, 7))
    model.train()(ids, labels=ids).loss.backward()
    longer = torch.randint(3, 20, (2, 8))
    if kind == "learned":
        with pytest.raises(ValueError, match="8 positions are more than the 7"):
            model(longer, labels=ids)
        with pytest.raises(ValueError, match="8 positions are more than the 7"):
            model(ids, labels=longer)
    else:
        model(longer, labels=longer).loss.backward()
