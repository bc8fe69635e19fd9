"""The model against torch.nn.Transformer, and what it promises about weights, files, losses and gradients.

Shapes: `B` sentences, `S` source and `T` target positions, `D` d_model, `H` heads, `V` vocabulary.
"""

import copy
import json
import math
from collections import Counter

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, DynamicCache, EncoderDecoderCache
from transformers.utils import find_labels

from modeling_vanilla import VanillaConfig, VanillaForCausalLM, VanillaForConditionalGeneration, VanillaModel
from modeling_vanilla.modeling_vanilla import VanillaDecoderLayer, VanillaEncoderLayer, shift_tokens_right

TIES = {  # which of source embedding, target embedding and projection are one matrix, and what a file calls it
    "all": ("sss", ["model.encoder.embed_tokens.weight"]),
    "decoder": ("stt", ["model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight"]),
    "source_target": ("ssp", ["lm_head.weight", "model.encoder.embed_tokens.weight"]),
    "none": (
        "stp",
        ["lm_head.weight", "model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight"],
    ),
}

every_tie = pytest.mark.parametrize("tied", TIES)
both_norms = pytest.mark.parametrize("norm_position", ["post", "pre"])
both_backends = pytest.mark.parametrize("backend", ["eager", "sdpa"])


def sentences(lengths, T=None, V=20) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids `(B, T)` padded with 0, and their mask."""
    T = T or max(lengths)
    mask = (torch.arange(T) < torch.tensor(lengths)[:, None]).long()
    return torch.randint(3, V, mask.shape) * mask, mask


def labels_of(lengths, T=None, V=20) -> torch.Tensor:
    ids, mask = sentences(lengths, T, V)
    return ids.masked_fill(mask == 0, -100)


def gradients_of(model, loss) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def embedding_weights(model) -> list[torch.Tensor]:
    return [model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight, model.lm_head.weight]


# --- size and numbers ---


def test_the_base_model_has_the_papers_number_of_parameters():
    with torch.device("meta"):
        model = VanillaForConditionalGeneration(VanillaConfig())
    D, ffn_dim, layers = 512, 2048, 6
    attention = 4 * (D * D + D)
    feed_forward = D * ffn_dim + ffn_dim + ffn_dim * D + D
    norm = 2 * D
    expected = 37_000 * D + layers * (attention + feed_forward + 2 * norm + 2 * attention + feed_forward + 3 * norm)
    assert model.num_parameters() == expected == 63_082_496


@pytest.mark.parametrize("output_bias", [False, True])
@pytest.mark.parametrize("use_bias", [False, True])
def test_biases_are_where_the_config_puts_them(tiny_config, use_bias, output_bias):
    model = VanillaForConditionalGeneration(tiny_config(use_bias=use_bias, output_bias=output_bias))
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert (linear.pop("lm_head").bias is not None) == output_bias
    assert len(linear) == 2 * (4 + 2) + 2 * (4 + 4 + 2)
    assert {module.bias is not None for module in linear.values()} == {use_bias}


# --- against torch.nn ---


def torchs_attention(ours: dict, prefix: str, name: str) -> dict:
    """Renames the tensors of one attention (parameters or gradients) as torch.nn.MultiheadAttention does."""
    return {
        **{
            f"{name}.in_proj_{kind}": torch.cat([ours[f"{prefix}.{x}_proj.{kind}"] for x in "qkv"])
            for kind in ("weight", "bias")
        },
        **{f"{name}.out_proj.{kind}": ours[f"{prefix}.out_proj.{kind}"] for kind in ("weight", "bias")},
    }


def torchs_layer(ours: dict, prefix: str = "") -> dict:
    """Renames the tensors of one layer as torch.nn.TransformerEncoderLayer and ...DecoderLayer do."""
    ours = {name.removeprefix(prefix): x for name, x in ours.items() if name.startswith(prefix)}
    result = torchs_attention(ours, "self_attn", "self_attn")
    names = {"fc1": "linear1", "fc2": "linear2", "self_attn_layer_norm": "norm1", "final_layer_norm": "norm2"}
    if "encoder_attn.q_proj.weight" in ours:
        result |= torchs_attention(ours, "encoder_attn", "multihead_attn")
        names |= {"encoder_attn_layer_norm": "norm2", "final_layer_norm": "norm3"}
    for kind in ("weight", "bias"):
        result |= {f"{theirs}.{kind}": ours[f"{name}.{kind}"] for name, theirs in names.items()}
    return result


def torchs_transformer(ours: dict, config: VanillaConfig) -> dict:
    """Renames the tensors of the whole model as torch.nn.Transformer does; embeddings are not among them."""
    result = {}
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        for i in range(layers):
            layer = torchs_layer(ours, f"model.{side}.layers.{i}.")
            result |= {f"{side}.layers.{i}.{name}": x for name, x in layer.items()}
        if config.norm_position == "pre":
            result |= {f"{side}.norm.{kind}": ours[f"model.{side}.layer_norm.{kind}"] for kind in ("weight", "bias")}
    return result


def randomized(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return module


def named_gradients(module: nn.Module) -> dict:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def assert_same(actual: dict, expected: dict) -> None:
    assert actual.keys() == expected.keys()
    torch.testing.assert_close(actual, {name: expected[name] for name in actual}, rtol=1e-5, atol=1e-5)


def additive(keep: torch.Tensor) -> torch.Tensor:
    return torch.zeros(keep.shape).masked_fill(~keep, torch.finfo(torch.float32).min)


LAYER = {"d_model": 16, "nhead": 2, "dim_feedforward": 24, "dropout": 0.0, "batch_first": True}


@both_norms
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_layer_is_torchs(tiny_config, norm_position, activation):
    config = tiny_config(norm_position=norm_position, activation_function=activation, attn_implementation="eager")
    layer = randomized(VanillaEncoderLayer(config, 0))
    reference = nn.TransformerEncoderLayer(**LAYER, norm_first=norm_position == "pre", activation=activation)
    reference.load_state_dict(torchs_layer(layer.state_dict()))
    keep = sentences([5, 3])[1].bool()
    x, y = (torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    output = layer(x, {"attention_mask": additive(keep[:, None, None])})
    expected = reference(y, src_key_padding_mask=~keep)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn(2, 5, 16) / 10
    output.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-5)
    assert_same(torchs_layer(named_gradients(layer)), named_gradients(reference))


@both_norms
def test_a_decoder_layer_is_torchs(tiny_config, norm_position):
    config = tiny_config(norm_position=norm_position, attn_implementation="eager")
    layer = randomized(VanillaDecoderLayer(config, 0))
    reference = nn.TransformerDecoderLayer(**LAYER, norm_first=norm_position == "pre")
    reference.load_state_dict(torchs_layer(layer.state_dict()))
    keep, future = sentences([5, 3])[1].bool(), torch.ones(4, 4).triu(1).bool()
    inputs = torch.randn(2, 4, 16), torch.randn(2, 5, 16)
    (x, memory), (y, memory_y) = ([tensor.clone().requires_grad_() for tensor in inputs] for _ in range(2))
    output = layer(
        x, {"attention_mask": additive(~future[None, None])}, memory, {"attention_mask": additive(keep[:, None, None])}
    )
    expected = reference(y, memory_y, tgt_mask=future, memory_key_padding_mask=~keep)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn(2, 4, 16) / 10
    output.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close([x.grad, memory.grad], [y.grad, memory_y.grad], rtol=1e-5, atol=1e-5)
    assert_same(torchs_layer(named_gradients(layer)), named_gradients(reference))


def positions(length: int, D: int) -> torch.Tensor:
    """Section 3.5."""
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10000 ** (torch.arange(0, D, 2) / D)
    table = torch.empty(length, D, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table.float()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@both_norms
@both_backends
@pytest.mark.parametrize("scale_embedding", [True, False])
def test_the_whole_model_is_torchs(tiny_model, norm_position, backend, scale_embedding):
    model = tiny_model(norm_position=norm_position, attn_implementation=backend, scale_embedding=scale_embedding)
    model = randomized(model)
    config = model.config
    sizes = {"d_model": 16, "nhead": 2, "num_encoder_layers": 2, "num_decoder_layers": 2, "dim_feedforward": 24}
    reference = nn.Transformer(**sizes, dropout=0.0, batch_first=True, norm_first=norm_position == "pre")
    if norm_position == "post":
        reference.encoder.norm = reference.decoder.norm = None
    reference.load_state_dict(torchs_transformer(model.state_dict(), config))
    embedding = model.model.encoder.embed_tokens.weight.detach().clone().requires_grad_()

    source, source_mask = sentences([6, 4, 1])
    target, _ = sentences([5, 5, 5])
    logits = model(input_ids=source, attention_mask=source_mask, decoder_input_ids=target).logits

    scale = 4.0 if scale_embedding else 1.0  # sqrt(16)
    states = reference(
        nn.functional.embedding(source, embedding, padding_idx=0) * scale + positions(6, 16),
        nn.functional.embedding(target, embedding, padding_idx=0) * scale + positions(5, 16),
        tgt_mask=torch.ones(5, 5).triu(1).bool(),
        src_key_padding_mask=source_mask == 0,
        memory_key_padding_mask=source_mask == 0,
    )
    expected = states @ embedding.T
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)

    upstream = torch.randn_like(logits) / 10
    logits.backward(upstream)
    expected.backward(upstream)
    assert_same(torchs_transformer(named_gradients(model), config), named_gradients(reference))
    torch.testing.assert_close(model.lm_head.weight.grad, embedding.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_layers_see_scaled_embeddings_plus_positions(tiny_model, side):
    stack = getattr(tiny_model().model, side)
    ids = torch.randint(3, 20, (2, 6))
    seen = []
    stack.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    stack(ids) if side == "encoder" else stack(ids, encoder_hidden_states=torch.randn(2, 3, 16))
    torch.testing.assert_close(seen[0], stack.embed_tokens.weight[ids] * 4 + positions(6, 16), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_half_precision_adds_positions_in_float32(tiny_model, side):
    stack = getattr(tiny_model(max_position_embeddings=300).bfloat16().model, side)
    embeds = torch.randn(2, 300, 16).bfloat16()
    expected = (embeds.float() * 4 + positions(300, 16)).bfloat16()
    assert torch.equal(stack.add_positions(embeds, 0, 300, None)[0], expected)


# --- dropout ---


class DropEverything(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)


def test_dropping_every_sub_layers_output_leaves_the_pre_norm_residual(tiny_config):
    config = tiny_config(norm_position="pre", attn_implementation="eager")
    x = torch.randn(2, 4, 16)
    for layer, inputs in (
        (VanillaEncoderLayer(config, 0), ()),
        (VanillaDecoderLayer(config, 0), (None, torch.randn(2, 3, 16))),
    ):
        layer.dropout = DropEverything()
        assert torch.equal(layer(x, *inputs), x)


def test_dropping_every_sub_layers_output_leaves_the_post_norm_norms(tiny_config):
    config = tiny_config(attn_implementation="eager")
    x = torch.randn(2, 4, 16)
    encoder_layer, decoder_layer = VanillaEncoderLayer(config, 0), VanillaDecoderLayer(config, 0)
    encoder_layer.dropout = decoder_layer.dropout = DropEverything()
    norm = nn.functional.layer_norm
    once_each = norm(norm(x, (16,)), (16,))
    torch.testing.assert_close(encoder_layer(x), once_each)
    torch.testing.assert_close(decoder_layer(x, None, torch.randn(2, 3, 16)), norm(once_each, (16,)))


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_embeddings_and_positions_are_dropped_together(tiny_model, side):
    stack = getattr(tiny_model().model, side)
    stack.dropout = DropEverything()
    assert (stack.add_positions(torch.randn(2, 4, 16), 0, 4, None)[0] == 0).all()


def test_activation_dropout_is_between_the_two_linear_maps(tiny_config):
    layer = randomized(VanillaEncoderLayer(tiny_config(), 0))
    layer.activation_dropout = DropEverything()
    assert torch.equal(layer.feed_forward(torch.randn(3, 16)), layer.fc2.bias.expand(3, 16))


@pytest.mark.parametrize("rate", ["dropout", "activation_dropout"])
def test_the_configs_rate_reaches_every_place_and_no_other(tiny_config, rate):
    model = VanillaForConditionalGeneration(tiny_config(**{rate: 0.25}))
    active = Counter()

    def count(name, inputs, output):
        dropped = (output[inputs != 0] == 0).double().mean()
        assert dropped == 0 or 0.15 < dropped < 0.35
        active[name] += dropped > 0

    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda _, args, output, name=name: count(name, args[0], output))
    ids = torch.randint(3, 20, (8, 20))
    model.train()(input_ids=ids, decoder_input_ids=ids)
    layers = [(side, f"model.{side}.layers.{i}.{rate}") for side in ("encoder", "decoder") for i in range(2)]
    if rate == "dropout":  # section 5.4: the sums of embeddings and positions, and each sub-layer's output
        expected = {name: 2 if side == "encoder" else 3 for side, name in layers}
        expected |= {"model.encoder.dropout": 1, "model.decoder.dropout": 1}
    else:
        expected = {name: 1 for _, name in layers}
    assert +active == expected


def test_training_with_dropout_differs_from_call_to_call_and_evaluation_does_not(tiny_model):
    model = tiny_model(dropout=0.1)
    ids = torch.randint(3, 20, (2, 6))
    assert torch.equal(model(ids, decoder_input_ids=ids).logits, model(ids, decoder_input_ids=ids).logits)
    model.train()
    assert not torch.equal(model(ids, decoder_input_ids=ids).logits, model(ids, decoder_input_ids=ids).logits)
    model.eval()
    assert torch.equal(model(ids, decoder_input_ids=ids).logits, model(ids, decoder_input_ids=ids).logits)


# --- weights and files ---


def assert_tied(model, pattern: str) -> None:
    weights = embedding_weights(model)
    for a in range(3):
        for b in range(3):
            assert (weights[a] is weights[b]) == (pattern[a] == pattern[b])


@every_tie
def test_tied_matrices_are_one_parameter(tiny_model, tied):
    assert_tied(tiny_model(tied_embeddings=tied), TIES[tied][0])


@every_tie
def test_the_librarys_switch_unties_everything(tiny_model, tied):
    assert_tied(tiny_model(tied_embeddings=tied, tie_word_embeddings=False), "stp")


@every_tie
def test_a_file_holds_each_tied_matrix_once(tiny_model, tied, tmp_path):
    tiny_model(tied_embeddings=tied).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert sorted(name for name in file.keys() if "embed" in name or "lm_head" in name) == TIES[tied][1]  # noqa: SIM118
        assert not [name for name in file.keys() if "positions" in name]  # noqa: SIM118


@pytest.mark.parametrize("tied", ["decoder", "none"])
def test_source_and_target_may_have_vocabularies_of_their_own(tiny_model, tied):
    model = tiny_model(vocab_size=20, decoder_vocab_size=30, tied_embeddings=tied)
    assert [len(weight) for weight in embedding_weights(model)] == [20, 30, 30]
    source, target = torch.tensor([[19, 5]]), torch.tensor([[29, 7, 3]])
    assert model(input_ids=source, decoder_input_ids=target).logits.shape == (1, 3, 30)


@every_tie
@pytest.mark.parametrize("output_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shard_size", ["50GB", "6KB"])
def test_a_saved_model_loads_bit_for_bit(tiny_model, tied, output_bias, dtype, shard_size, tmp_path):
    model = tiny_model(tied_embeddings=tied, output_bias=output_bias).to(dtype)
    model.save_pretrained(tmp_path, max_shard_size=shard_size)
    assert (tmp_path / "model.safetensors.index.json").exists() == (shard_size == "6KB")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype="auto")
    assert type(loaded) is VanillaForConditionalGeneration
    assert not loaded.training
    assert_tied(loaded, TIES[tied][0])
    expected = model.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, tensor in loaded.state_dict().items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, expected[name])
    for side in ("encoder", "decoder"):
        table = getattr(loaded.model, side).embed_positions.table
        assert table.dtype == torch.float32
        assert torch.equal(table, getattr(model.model, side).embed_positions.table)
    ids = torch.tensor([[3, 4, 5]])
    assert torch.equal(loaded(ids, decoder_input_ids=ids).logits, model(ids, decoder_input_ids=ids).logits)


@every_tie
def test_a_model_untied_by_the_switch_saves_and_loads(tiny_model, tied, tmp_path):
    model = tiny_model(tied_embeddings=tied, tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert_tied(loaded, "stp")
    assert all(map(torch.equal, embedding_weights(loaded), embedding_weights(model)))


@every_tie
def test_automodel_loads_encoder_and_decoder_of_a_saved_model(tiny_model, tied, tmp_path):
    model = tiny_model(tied_embeddings=tied)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded) is VanillaModel
    ids = torch.tensor([[3, 4, 5]])
    expected = model.model(ids, decoder_input_ids=ids).last_hidden_state
    assert torch.equal(loaded(ids, decoder_input_ids=ids).last_hidden_state, expected)


@every_tie
def test_a_bare_model_saves_and_loads(tiny_config, tied, tmp_path):
    model = VanillaModel(tiny_config(tied_embeddings=tied)).eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    ids = torch.tensor([[3, 4, 5]])
    expected = model(ids, decoder_input_ids=ids).last_hidden_state
    assert torch.equal(loaded(ids, decoder_input_ids=ids).last_hidden_state, expected)
    same = loaded.encoder.embed_tokens.weight is loaded.decoder.embed_tokens.weight
    assert same == (tied in ("all", "source_target"))


@every_tie
def test_a_bare_models_file_gives_a_model_with_a_projection(tiny_config, tied, tmp_path):
    bare = VanillaModel(tiny_config(tied_embeddings=tied))
    bare.save_pretrained(tmp_path)
    loaded, info = VanillaForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert torch.equal(loaded.model.encoder.embed_tokens.weight, bare.encoder.embed_tokens.weight)
    assert torch.equal(loaded.model.decoder.layers[1].fc1.weight, bare.decoder.layers[1].fc1.weight)
    assert_tied(loaded, TIES[tied][0])
    assert sorted(info["missing_keys"]) == (["lm_head.weight"] if tied in ("source_target", "none") else [])
    assert loaded.lm_head.weight.isfinite().all()
    assert loaded.lm_head.weight.std() > 0.1


def test_loading_twice_gives_the_same_output(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    ids = torch.tensor([[3, 4, 5]])
    first, second = (
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path)(ids, decoder_input_ids=ids).logits for _ in range(2)
    )
    assert torch.equal(first, second)


def test_a_saved_model_names_its_class_and_type(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["VanillaForConditionalGeneration"]
    assert AutoConfig.from_pretrained(tmp_path).model_type == "vanilla"


def test_saving_again_changes_no_byte(tiny_model, tmp_path):
    tiny_model().save_pretrained(tmp_path / "a")
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("tied", TIES)
def test_a_deep_copy_keeps_its_ties_to_itself(tiny_model, tied):
    model = tiny_model(tied_embeddings=tied)
    twin = copy.deepcopy(model)
    assert_tied(twin, TIES[tied][0])
    assert embedding_weights(twin)[0] is not embedding_weights(model)[0]


@every_tie
@pytest.mark.parametrize("size", [17, 25])
def test_resizing_one_vocabulary_reaches_both_sides_and_survives_a_file(tiny_model, tied, size, tmp_path):
    model = tiny_model(tied_embeddings=tied, output_bias=True)
    before = [weight.detach().clone() for weight in embedding_weights(model)]
    model.resize_token_embeddings(size)
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (size, size)
    assert_tied(model, TIES[tied][0])
    for weight, old in zip(embedding_weights(model), before, strict=True):
        assert weight.shape == (size, 16)
        assert torch.equal(weight[: min(size, 20)], old[: min(size, 20)])
    ids = torch.tensor([[3, size - 1]])
    output = model(input_ids=ids, labels=ids)
    assert output.logits.shape == (1, 2, size)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(input_ids=ids, labels=ids).loss, output.loss)


@pytest.mark.parametrize("tied", ["decoder", "none"])
def test_resizing_one_of_two_vocabularies_leaves_the_targets_alone(tiny_model, tied, tmp_path):
    model = tiny_model(tied_embeddings=tied, decoder_vocab_size=30)
    before = model.lm_head.weight.detach().clone()
    model.resize_token_embeddings(25)
    assert [len(weight) for weight in embedding_weights(model)] == [25, 30, 30]
    assert torch.equal(model.lm_head.weight, before)
    source, target = torch.tensor([[24, 3]]), torch.tensor([[29, 3]])
    output = model(input_ids=source, labels=target)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(input_ids=source, labels=target).loss, output.loss)


@pytest.mark.parametrize("tied", ["decoder", "none"])
@pytest.mark.parametrize("size", [21, 40])
def test_the_targets_vocabulary_is_resized_with_the_output_and_its_bias(tiny_model, tied, size, tmp_path):
    model = tiny_model(tied_embeddings=tied, decoder_vocab_size=30, output_bias=True)
    model.lm_head.requires_grad_(False)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    source, kept = torch.tensor([[19, 3]]), min(size, 30)
    logits = model(input_ids=source, labels=torch.tensor([[20, 3]])).logits
    assert model.resize_decoder_token_embeddings(size) is model.model.decoder.embed_tokens
    assert (model.config.vocab_size, model.config.decoder_vocab_size) == (20, size)
    assert [len(weight) for weight in (*embedding_weights(model), model.lm_head.bias)] == [20, size, size, size]
    for name, weight in model.state_dict().items():
        old = before[name]
        assert torch.equal(weight[:kept], old[:kept]) if len(old) == 30 else torch.equal(weight, old)
    assert not model.lm_head.weight.requires_grad
    resized = model(input_ids=source, labels=torch.tensor([[20, 3]])).logits
    torch.testing.assert_close(resized[..., :kept], logits[..., :kept], rtol=1e-5, atol=1e-6)
    target = torch.tensor([[size - 1, 3]])
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(input_ids=source, labels=target).loss, model(input_ids=source, labels=target).loss)


@pytest.mark.parametrize("tied", ["all", "source_target"])
def test_a_vocabulary_of_both_sides_is_not_resized_on_one(tiny_model, tied):
    with pytest.raises(ValueError, match="use resize_token_embeddings"):
        tiny_model(tied_embeddings=tied).resize_decoder_token_embeddings(30)


@every_tie
@pytest.mark.parametrize("apart", [False, True])
def test_what_shares_a_matrix_is_saved_as_such_whatever_the_config_was_told_since(tiny_model, tied, apart, tmp_path):
    """As PEFT tells it where source and output aren't one matrix (any more)."""
    model = tiny_model(tied_embeddings=tied)
    if apart:
        model.lm_head.weight = nn.Parameter(torch.randn(20, 16))
    model.config.tie_word_embeddings = False
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    source, target, output = embedding_weights(loaded)
    assert (target is source) == (tied in ("all", "source_target"))
    assert (output is target) == (tied in ("all", "decoder") and not apart)
    ids = torch.tensor([[3, 7, 2]])
    assert torch.equal(loaded(input_ids=ids, labels=ids).logits, model(input_ids=ids, labels=ids).logits)


@every_tie
def test_a_new_input_embedding_is_shared_as_the_old_one_was(tiny_model, tied):
    model = tiny_model(tied_embeddings=tied)
    new = nn.Embedding(20, 16, 0)
    model.set_input_embeddings(new)
    assert model.get_input_embeddings().weight is new.weight
    same = model.model.decoder.embed_tokens.weight is new.weight
    assert same == (tied in ("all", "source_target"))
    model.tie_weights()
    assert_tied(model, TIES[tied][0])


# --- initial weights ---


def built(config):
    return VanillaForConditionalGeneration(config)


def built_from_config(config):
    return AutoModelForSeq2SeqLM.from_config(config)


def built_bare(config):
    return AutoModel.from_config(config)


def built_with_missing_weights(config, tmp_path_factory):
    """Nothing of the checkpoint fits, so that loading draws every weight anew."""
    folder = tmp_path_factory.mktemp("empty")
    VanillaForConditionalGeneration(config).save_pretrained(folder)
    save_file({"unrelated": torch.zeros(1)}, folder / "model.safetensors", metadata={"format": "pt"})
    return VanillaForConditionalGeneration.from_pretrained(folder)


@pytest.fixture(
    scope="module", params=[built, built_from_config, built_bare, built_with_missing_weights], ids=lambda f: f.__name__
)
def fresh(request, tmp_path_factory, tiny_config):
    torch.manual_seed(3)
    config = tiny_config(vocab_size=2000, d_model=64, encoder_ffn_dim=128, decoder_ffn_dim=256, tied_embeddings="none")
    extra = (tmp_path_factory,) if request.param is built_with_missing_weights else ()
    return request.param(config, *extra)


def test_matrices_are_glorot_uniform(fresh):
    for name, module in fresh.named_modules():
        if isinstance(module, nn.Linear):
            # Query, key and value count as one matrix (3D, D): sqrt(6 / (3D + D)) = sqrt(6 / (D + D)) / sqrt(2).
            gain = math.sqrt(0.5) if name.endswith(("q_proj", "k_proj", "v_proj")) else 1.0
            bound = gain * math.sqrt(6 / (module.in_features + module.out_features))
            weight = module.weight.detach()
            assert 0.99 * bound < weight.abs().max() <= bound, name
            # a uniform distribution's deviation, within five standard errors of it
            error = 5 * math.sqrt(0.2 / weight.numel())
            assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=error), name
            assert abs(weight.mean()) < 5 * bound / math.sqrt(3 * weight.numel()), name


def test_biases_are_zero_and_norms_one(fresh):
    for name, parameter in fresh.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "layer_norm" in name:
            assert (parameter == 1).all(), name


def test_embeddings_are_normal_with_unit_variance_after_scaling(fresh):
    for module in fresh.modules():
        if isinstance(module, nn.Embedding):
            weight = module.weight.detach()[1:] * 8  # sqrt(64)
            assert weight.std().item() == pytest.approx(1, rel=5 * math.sqrt(0.5 / weight.numel()))
            assert abs(weight.mean()) < 5 / math.sqrt(weight.numel())


def test_the_padding_tokens_embedding_is_zero(fresh):
    for module in fresh.modules():
        if isinstance(module, nn.Embedding):
            assert (module.weight[0] == 0).all()


def test_a_tied_projection_starts_as_the_embedding(tiny_config):
    model = VanillaForConditionalGeneration(tiny_config(vocab_size=2000))
    assert (model.lm_head.weight[0] == 0).all()
    assert model.lm_head.weight[1:].std().item() == pytest.approx(0.25, rel=0.02)


def test_the_seed_decides_the_weights(tiny_config):
    def build(seed):
        torch.manual_seed(seed)
        return VanillaForConditionalGeneration(tiny_config()).lm_head.weight

    assert torch.equal(build(1), build(1))
    assert not torch.equal(build(1), build(2))


# --- labels and losses ---


def test_decoder_inputs_are_the_labels_a_place_later():
    labels = torch.tensor([[5, 6, 2], [7, 2, -100], [2, -100, -100]])
    assert shift_tokens_right(labels, 0, 1).tolist() == [[1, 5, 6], [1, 7, 2], [1, 2, 0]]


def test_the_collator_gets_decoder_inputs_with_the_configs_tokens(tiny_model):
    model = tiny_model(pad_token_id=9, decoder_start_token_id=8)
    labels = torch.tensor([[5, 2, -100]])
    assert model.prepare_decoder_input_ids_from_labels(labels).tolist() == [[8, 5, 2]]
    assert model.prepare_decoder_input_ids_from_labels(torch.tensor([[2, -100, 4]])).tolist() == [[8, 2, 9]]
    assert labels.tolist() == [[5, 2, -100]]  # and they are left as they were


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("output_bias", [False, True])
@every_tie
def test_the_loss_is_the_cross_entropy_of_the_logits(tiny_model, tied, output_bias, label_smoothing):
    model = tiny_model(tied_embeddings=tied, output_bias=output_bias)
    source, mask = sentences([6, 4, 5])
    labels = labels_of([5, 3, 1])
    inputs = {"input_ids": source, "attention_mask": mask, "labels": labels}
    decoder_input_ids = torch.cat([torch.ones(3, 1, dtype=torch.long), labels[:, :-1].clamp(min=0)], 1)
    logits = model(source, mask, decoder_input_ids=decoder_input_ids).logits
    expected = nn.functional.cross_entropy(logits.mT, labels, label_smoothing=label_smoothing)
    evaluated = model(**inputs, label_smoothing=label_smoothing)
    trained = model.train()(**inputs, label_smoothing=label_smoothing)
    for output in (evaluated, trained):
        torch.testing.assert_close(output.loss, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(output.nll, nn.functional.cross_entropy(logits.mT, labels).detach())
        assert not output.nll.requires_grad
    expected_gradients = gradients_of(model, expected)
    for output in (evaluated, trained):
        torch.testing.assert_close(gradients_of(model, output.loss), expected_gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("training", "settings", "has_logits"),
    [
        (True, {}, False),
        (False, {}, True),
        (True, {"return_logits": True}, True),
        (False, {"return_logits": False}, False),
    ],
    ids=str,
)
def test_logits_are_kept_with_labels_only_in_evaluation_or_when_asked_for(tiny_model, training, settings, has_logits):
    labels = labels_of([4, 2])
    output = tiny_model().train(training)(input_ids=sentences([3, 3])[0], labels=labels, **settings)
    assert (output.logits is not None) == has_logits
    if has_logits:
        assert output.logits.shape == (2, 4, 20)
        torch.testing.assert_close(output.loss, nn.functional.cross_entropy(output.logits.mT, labels))


def test_without_labels_there_are_logits_and_no_loss(tiny_model):
    ids = torch.tensor([[3, 4]])
    output = tiny_model().train()(ids, decoder_input_ids=ids)
    assert output.logits.shape == (1, 2, 20)
    assert output.loss is output.nll is None


def test_labels_do_not_ask_for_a_cache(tiny_model):
    ids = torch.tensor([[3, 4]])
    assert tiny_model()(ids, labels=ids).cache is None
    assert tiny_model()(ids, labels=ids, use_cache=True).cache.get_seq_length() == 2


def test_given_decoder_inputs_win_over_the_labels(tiny_model):
    model = tiny_model()
    source, labels, other = torch.tensor([[3, 4]]), torch.tensor([[5, 6, 2]]), torch.tensor([[1, 9, 9]])
    logits = model(source, decoder_input_ids=other).logits
    embeds = model.model.decoder.embed_tokens(other)
    expected = nn.functional.cross_entropy(logits.mT, labels)
    torch.testing.assert_close(model(source, decoder_input_ids=other, labels=labels).loss, expected)
    torch.testing.assert_close(model(source, decoder_inputs_embeds=embeds, labels=labels).loss, expected)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_batch_in_pieces_gives_the_gradients_of_the_whole(tiny_model, label_smoothing, as_tensor):
    model = tiny_model().train()
    source_lengths, target_lengths = [7, 3, 5, 2, 1, 6, 4, 4], [2, 6, 1, 1, 8, 3, 5, 5]
    source, mask = sentences(source_lengths)
    labels = labels_of(target_lengths)
    num_items = sum(target_lengths)
    num_items = torch.tensor(num_items) if as_tensor else num_items
    settings = {"label_smoothing": label_smoothing, "num_items_in_batch": num_items}
    whole = model(source, mask, labels=labels, **settings)
    expected = gradients_of(model, whole.loss)
    model.zero_grad()
    losses, nlls = [], []
    for piece in (slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 8)):
        S, T = max(source_lengths[piece]), max(target_lengths[piece])  # each piece has padding of its own
        output = model(source[piece, :S], mask[piece, :S], labels=labels[piece, :T], **settings)
        output.loss.backward()
        losses.append(output.loss.detach())
        nlls.append(output.nll)
    torch.testing.assert_close(sum(losses), whole.loss.detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(sum(nlls), whole.nll, rtol=1e-6, atol=0)
    torch.testing.assert_close(named_gradients(model), expected, rtol=1e-5, atol=1e-6)


def test_trainer_finds_no_label_but_the_labels():
    assert find_labels(VanillaForConditionalGeneration) == ["labels"]


class Shifted(nn.Module):
    """An adapter around the projection."""

    def __init__(self, head):
        super().__init__()
        self.base_layer = head
        self.shift = nn.Parameter(torch.randn(20))

    def forward(self, x):
        return self.base_layer(x) + self.shift


def test_an_adapter_in_the_place_of_the_projection_is_called_in_training(tiny_model):
    model = tiny_model()
    model.lm_head = Shifted(model.lm_head)
    ids = torch.tensor([[3, 4, 5]])
    expected = model(ids, labels=ids).loss
    loss = model.train()(ids, labels=ids).loss
    torch.testing.assert_close(loss, expected)
    assert gradients_of(model, loss)["lm_head.shift"].abs().sum() > 0


def test_a_hook_on_the_projection_is_called_in_training(tiny_model):
    model = tiny_model()
    shift = torch.randn(20)
    model.lm_head.register_forward_hook(lambda _, __, logits: logits + shift)
    ids = torch.tensor([[3, 4, 5]])
    expected = model(ids, labels=ids).loss
    torch.testing.assert_close(model.train()(ids, labels=ids).loss, expected)


# --- arguments and outputs ---


def test_inputs_embeds_stand_for_input_ids(tiny_model):
    model = tiny_model()
    source, mask = sentences([5, 3])
    target, _ = sentences([4, 4])
    expected = model(source, mask, decoder_input_ids=target).logits
    embeds = {
        "inputs_embeds": model.model.encoder.embed_tokens(source),
        "decoder_inputs_embeds": model.model.decoder.embed_tokens(target),
    }
    assert torch.equal(model(attention_mask=mask, **embeds).logits, expected)


@pytest.mark.parametrize(
    ("sources", "targets", "mask"),
    [((4, 5), (2, 3), None), ((6, 5), (4, 3), None), ((4, 5), (4, 3), (2, 5)), ((4, 5), (4, 3), (4, 3))],
    ids=str,
)
def test_targets_of_other_sources_are_refused(tiny_model, sources, targets, mask):
    model = tiny_model()
    states = torch.zeros(*sources, model.config.d_model)
    settings = {"encoder_outputs": (states,), "attention_mask": None if mask is None else torch.ones(mask)}
    with pytest.raises(
        ValueError, match=rf"{targets[0]} targets, but sources of \(B, S\) = \({sources[0]}, {sources[1]}\)"
    ):
        model(decoder_input_ids=torch.ones(targets).long(), **settings)


def test_a_decoder_without_its_source_is_refused(tiny_model):
    with pytest.raises(ValueError, match="2 targets, but sources of"):
        tiny_model().get_decoder()(torch.ones(2, 3).long())


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize("arguments", [{}, {"input_ids": torch.tensor([[3]]), "inputs_embeds": torch.zeros(1, 1, 16)}])
def test_ids_and_embeddings_exclude_each_other(tiny_model, side, arguments):
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        getattr(tiny_model().model, side)(**arguments)


@pytest.mark.parametrize("wrap", [lambda outputs: outputs, lambda outputs: outputs.to_tuple()], ids=["output", "tuple"])
def test_encoder_outputs_may_be_given(tiny_model, wrap):
    model = tiny_model()
    source, mask = sentences([5, 3])
    target, _ = sentences([4, 4])
    expected = model(source, mask, decoder_input_ids=target)
    given = wrap(model.get_encoder()(source, mask, output_hidden_states=True))
    output = model(attention_mask=mask, encoder_outputs=given, decoder_input_ids=target)
    assert torch.equal(output.logits, expected.logits)
    assert torch.equal(output.encoder_last_hidden_state, expected.encoder_last_hidden_state)
    assert torch.equal(output.encoder_hidden_states[-1], expected.encoder_last_hidden_state)


def test_a_tuple_is_returned_on_request(tiny_model):
    model = tiny_model()
    ids = torch.tensor([[3, 4, 5]])
    output = model(ids, labels=ids)
    loss, logits, *_ = model(ids, labels=ids, return_dict=False)
    assert torch.equal(loss, output.loss)
    assert torch.equal(logits, output.logits)


@both_norms
def test_attentions_and_hidden_states_have_their_shapes(tiny_model, norm_position):
    model = tiny_model(
        norm_position=norm_position,
        attn_implementation="eager",
        encoder_layers=1,
        decoder_layers=3,
        encoder_attention_heads=4,
    )
    B, S, T, D = 2, 5, 4, 16
    source, mask = sentences([5, 3])
    target, _ = sentences([4, 4])
    output = model(source, mask, decoder_input_ids=target, output_attentions=True, output_hidden_states=True)
    assert [x.shape for x in output.encoder_attentions] == [(B, 4, S, S)]
    assert [x.shape for x in output.decoder_attentions] == [(B, 2, T, T)] * 3
    assert [x.shape for x in output.cross_attentions] == [(B, 2, T, S)] * 3
    assert [x.shape for x in output.encoder_hidden_states] == [(B, S, D)] * 2
    assert [x.shape for x in output.decoder_hidden_states] == [(B, T, D)] * 4
    for attentions in (output.encoder_attentions, output.decoder_attentions, output.cross_attentions):
        torch.testing.assert_close(attentions[0].sum(-1), torch.ones(attentions[0].shape[:3]))
    assert (output.cross_attentions[0][1, :, :, 3:] == 0).all()  # the second source has three tokens
    assert (output.decoder_attentions[0].triu(1) == 0).all()
    assert torch.equal(output.encoder_hidden_states[-1], output.encoder_last_hidden_state)
    assert torch.equal(model.lm_head(output.decoder_hidden_states[-1]), output.logits)
    counted = torch.tensor([[0, 1, 2, 3, 4], [0, 1, 2, 2, 2]])
    first, _ = model.model.encoder.add_positions(model.model.encoder.embed_tokens(source), 0, S, counted)
    assert torch.equal(output.encoder_hidden_states[0], first)


def test_attentions_and_hidden_states_are_not_kept_unasked(tiny_model):
    ids = torch.tensor([[3, 4]])
    output = tiny_model(attn_implementation="eager")(ids, decoder_input_ids=ids)
    assert output.encoder_hidden_states is output.decoder_attentions is output.cross_attentions is None


# --- cache ---


@both_backends
@both_norms
@pytest.mark.parametrize("pieces", [[1] * 6, [3, 3], [2, 1, 3]], ids=str)
def test_a_cache_continues_where_the_last_call_ended(tiny_model, backend, norm_position, pieces):
    model = tiny_model(attn_implementation=backend, norm_position=norm_position, decoder_layers=3, encoder_layers=1)
    source, mask = sentences([5, 3])
    target, _ = sentences([6, 6])
    expected = model(source, mask, decoder_input_ids=target).logits
    cache, logits = None, []
    for piece in target.split(pieces, dim=1):
        output = model(source, mask, decoder_input_ids=piece, cache=cache, use_cache=True)
        cache = output.cache
        logits.append(output.logits)
    assert isinstance(cache, EncoderDecoderCache)
    assert cache.get_seq_length() == 6
    torch.testing.assert_close(torch.cat(logits, 1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("of", ["head", "model", "decoder"])
def test_the_caches_old_name_still_works_and_warns(tiny_model, of):
    model = tiny_model()
    source, target = torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6, 7]])
    expected = model(source, decoder_input_ids=target).logits[:, 2:]
    cache = model(source, decoder_input_ids=target[:, :2], use_cache=True).cache
    states = model.get_encoder()(source).last_hidden_state
    module, inputs = {
        "head": (model, {"input_ids": source, "decoder_input_ids": target[:, 2:]}),
        "model": (model.model, {"input_ids": source, "decoder_input_ids": target[:, 2:]}),
        "decoder": (model.get_decoder(), {"input_ids": target[:, 2:], "encoder_hidden_states": states}),
    }[of]
    with pytest.warns(FutureWarning, match="past_key_values"):
        output = module(**inputs, past_key_values=cache)
    logits = output.logits if of == "head" else model.lm_head(output.last_hidden_state)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_the_caches_old_name_works_for_a_language_model_too(tiny_config):
    model = VanillaForCausalLM(tiny_config()).eval()
    ids = torch.tensor([[1, 6, 7, 4]])
    expected = model(ids).logits[:, 3:]
    cache = model(ids[:, :3], use_cache=True).cache
    with pytest.warns(FutureWarning, match="past_key_values"):
        torch.testing.assert_close(model(ids[:, 3:], past_key_values=cache).logits, expected, rtol=1e-5, atol=1e-5)


def test_a_plain_cache_serves_the_decoders_self_attention(tiny_model):
    model = tiny_model()
    source, target = torch.tensor([[3, 4, 5]]), torch.tensor([[1, 6, 7, 8]])
    expected = model(source, decoder_input_ids=target).logits
    cache = DynamicCache(config=model.config)
    logits = [
        model(source, decoder_input_ids=piece, cache=cache, use_cache=True).logits for piece in target.split(2, 1)
    ]
    torch.testing.assert_close(torch.cat(logits, 1), expected, rtol=1e-5, atol=1e-5)
    assert cache.get_seq_length() == 4


def test_use_cache_of_the_config_is_the_default(tiny_model):
    ids = torch.tensor([[3, 4]])
    assert tiny_model()(ids, decoder_input_ids=ids).cache.get_seq_length() == 2
    assert tiny_model(use_cache=False)(ids, decoder_input_ids=ids).cache is None
    assert tiny_model()(ids, decoder_input_ids=ids, use_cache=False).cache is None


# --- the edges ---


@both_backends
def test_a_source_of_nothing_but_padding_is_finite(tiny_model, backend):
    model = tiny_model(attn_implementation=backend)
    source, mask = sentences([4, 0])
    labels = labels_of([3, 2])
    output = model(source, mask, labels=labels)
    assert output.logits.isfinite().all()
    alone = model(source[:1], mask[:1], labels=labels[:1]).logits
    torch.testing.assert_close(output.logits[:1], alone, rtol=1e-5, atol=1e-5)
    loss = model.train()(source, mask, labels=labels).loss
    assert all(gradient.isfinite().all() for gradient in gradients_of(model, loss).values())


@both_backends
def test_a_batch_of_nothing_but_padding_moves_nothing(tiny_model, backend):
    model = tiny_model(attn_implementation=backend).train()
    source, mask = sentences([0, 0], T=4)
    loss = model(source, mask, labels=labels_of([0, 0], T=3)).loss
    assert loss == 0
    assert all((gradient == 0).all() for gradient in gradients_of(model, loss).values())


@both_backends
def test_sentences_of_one_token_work(tiny_model, backend):
    model = tiny_model(attn_implementation=backend)
    ids = torch.tensor([[7]])
    output = model(ids, torch.ones_like(ids), labels=ids)
    expected = model(ids, decoder_input_ids=torch.tensor([[1]])).logits
    assert torch.equal(output.logits, expected)
    loss = model.train()(ids, torch.ones_like(ids), labels=ids).loss
    assert all(gradient.isfinite().all() for gradient in gradients_of(model, loss).values())


def test_sentences_longer_than_the_table_are_as_with_a_longer_table(tiny_model):
    short, long = tiny_model(max_position_embeddings=4), tiny_model(max_position_embeddings=64)
    long.load_state_dict(short.state_dict())
    source, target = torch.randint(3, 20, (2, 23)), torch.randint(3, 20, (2, 41))
    expected = long(source, decoder_input_ids=target).logits
    torch.testing.assert_close(short(source, decoder_input_ids=target).logits, expected)


@both_norms
def test_half_precision_is_finite_and_near_float32(tiny_model, norm_position):
    model = tiny_model(norm_position=norm_position)
    source, mask = sentences([9, 3, 0])
    labels = labels_of([8, 2, 4])
    exact = model(source, mask, labels=labels)
    half = copy.deepcopy(model).bfloat16()(source, mask, labels=labels)
    assert half.logits.dtype == torch.bfloat16
    assert half.logits.isfinite().all()
    # bfloat16 keeps 8 bits; some ten roundings a layer add up to a few times its 2^-8
    assert (half.logits.float() - exact.logits).norm() < 2**-5 * exact.logits.norm()
    torch.testing.assert_close(half.loss, exact.loss, rtol=2**-6, atol=0)


def test_half_precision_trains(tiny_model):
    model = tiny_model()
    labels = labels_of([5, 2])
    source, mask = sentences([4, 3])
    exact = gradients_of(model, model.train()(source, mask, labels=labels).loss)
    half = copy.deepcopy(model).bfloat16()
    gradients = gradients_of(half, half(source, mask, labels=labels).loss)
    for name, gradient in gradients.items():
        assert gradient.dtype == torch.bfloat16
        if "k_proj.bias" not in name:  # a key's bias moves all scores alike, so its gradient is rounding alone
            assert (gradient.float() - exact[name]).norm() < 0.1 * exact[name].norm() + 1e-4, name


def test_autocast_trains_float32_weights(tiny_model):
    model = tiny_model().train()
    labels = labels_of([5, 2])
    source, mask = sentences([4, 3])
    exact = model(source, mask, labels=labels).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(source, mask, labels=labels).loss
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=2**-6, atol=0)
    assert {gradient.dtype for gradient in gradients_of(model, loss).values()} == {torch.float32}


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("asks_for_cache", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(tiny_model, use_reentrant, dropout, asks_for_cache):
    model = tiny_model(dropout=dropout, attention_dropout=dropout).train()
    source, mask = sentences([5, 3])
    inputs = {"input_ids": source, "attention_mask": mask, "labels": labels_of([6, 2]), "use_cache": asks_for_cache}

    def seeded_gradients():
        torch.manual_seed(7)
        return gradients_of(model, model(**inputs).loss)

    expected = seeded_gradients()
    model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    calls = []
    model.model.decoder.layers[0].fc1.register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(seeded_gradients(), expected, rtol=1e-6, atol=1e-7)
    assert len(calls) == 2  # computed, and computed again


@pytest.mark.slow
def test_the_forward_pass_compiles_to_one_graph(tiny_model):
    model = tiny_model(encoder_layers=1, decoder_layers=1)
    compiled = torch.compile(model, fullgraph=True)
    source, mask = sentences([5, 3])
    target, _ = sentences([4, 4])
    inputs = {"input_ids": source, "attention_mask": mask, "decoder_input_ids": target, "use_cache": False}
    torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_compiled_training_step_gives_the_same_gradients(tiny_model):
    model = tiny_model(encoder_layers=1, decoder_layers=1).train()
    compiled = torch.compile(model)
    for lengths in ([6, 2], [4, 7, 1]):
        source, mask = sentences(lengths)
        inputs = {"input_ids": source, "attention_mask": mask, "labels": labels_of(lengths), "label_smoothing": 0.1}
        expected = gradients_of(model, model(**inputs).loss)
        torch.testing.assert_close(gradients_of(model, compiled(**inputs).loss), expected, rtol=1e-5, atol=1e-6)
