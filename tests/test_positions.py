"""Sinusoidal positions against the formulas, written out one number at a time, and against other implementations."""

import math

import pytest
import torch
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from modeling_vanilla.positions import SinusoidalPositions, sinusoids

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_loaded_through_the_meta_device_has_the_formulas_table(tiny_model, tmp_path, dtype):
    model = tiny_model(sinusoid_layout="halves", position_offset=3)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=dtype)
    for stack in (loaded.model.encoder, loaded.model.decoder):
        assert stack.embed_tokens.weight.dtype == dtype
        assert_rounded_alike(stack.embed_positions.table, table_of(range(3, 35), 16, "halves"))


def test_a_table_grown_in_inference_mode_serves_training_later(tiny_model):
    model = tiny_model()
    ids = torch.randint(3, 20, (1, 40))
    with torch.inference_mode():
        model(input_ids=ids, decoder_input_ids=ids)
    model.train()(input_ids=ids, labels=ids).loss.backward()
    assert model.model.encoder.embed_tokens.weight.grad.abs().sum() > 0
