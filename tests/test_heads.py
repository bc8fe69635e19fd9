"""
The encoder and the decoder in other uses, against plain loops, PyTorch's modules and losses, and the translation model.

Shapes: `B` examples, `S` tokens, `D` d_model, `L` labels, `P` patch size.
"""

import copy

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    ViTImageProcessorPil,
    pipeline,
)

from modeling_vanilla import (
    VanillaEncoderModel,
    VanillaForCausalLM,
    VanillaForConditionalGeneration,
    VanillaForImageClassification,
    VanillaForSequenceClassification,
    VanillaModel,
)
from modeling_vanilla.modeling_vanilla import VanillaEncoder
from tests.fixtures import POSITION_ENCODINGS, padded, random_padded

HEADS = {
    AutoModelForTextEncoding: VanillaEncoderModel,
    AutoModelForSequenceClassification: VanillaForSequenceClassification,
    AutoModelForImageClassification: VanillaForImageClassification,
    AutoModelForCausalLM: VanillaForCausalLM,
}
TEXT = [VanillaEncoderModel, VanillaForSequenceClassification, VanillaForCausalLM]

every_head = pytest.mark.parametrize("head", HEADS.values(), ids=lambda head: head.__name__)
every_text_head = pytest.mark.parametrize("head", TEXT, ids=lambda head: head.__name__)
every_kind = pytest.mark.parametrize("kind", POSITION_ENCODINGS)


@pytest.fixture(scope="session")
def tiny_head(tiny_config):
    """Builds such a model, in evaluation mode, with biases and norms that are not at their trivial initial values."""

    def build(head, **changes):
        sizes = {"image_size": 8, "patch_size": 4, "num_channels": 3, "num_labels": 3}
        model = head(tiny_config(**sizes | changes)).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias") or "layer_norm" in name:
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
        return model

    return build


def inputs_of(head, lengths=(5, 3, 1)) -> dict[str, torch.Tensor]:
    if head is VanillaForImageClassification:
        return {"pixel_values": torch.randn(len(lengths), 3, 8, 8)}
    ids, mask = random_padded(list(lengths))
    return {"input_ids": ids, "attention_mask": mask}


def gradients_of(model, *losses: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of each loss, added up as they come."""
    model.zero_grad()
    for loss in losses:
        loss.backward()
    return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


# --- all of them ---


@pytest.mark.parametrize(("auto", "head"), HEADS.items(), ids=lambda x: x.__name__)
@every_kind
@torch.no_grad()
def test_a_saved_head_loads_bit_for_bit_with_its_auto_class(tiny_head, tmp_path, auto, head, kind):
    model = tiny_head(head, position_encoding=kind, output_bias=True)
    model.save_pretrained(tmp_path)
    loaded, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is head
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    expected = model.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(x, expected[name]) for name, x in loaded.state_dict().items())
    inputs = inputs_of(head)
    assert torch.equal(loaded(**inputs)[0], model(**inputs)[0])
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict() | {"dtype": "float32"}


@every_head
def test_saving_again_changes_no_byte(tiny_head, tmp_path, head):
    tiny_head(head).save_pretrained(tmp_path / "a")
    head.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@every_head
def test_a_head_leaves_the_config_that_it_was_given_alone(tiny_config, head):
    config = tiny_config(decoder_vocab_size=30, tied_embeddings="none", decoder_layers=3, image_size=32)
    before = copy.deepcopy(config.to_dict())
    head(config)
    assert config.to_dict() == before


@every_head
def test_automodel_refuses_an_encoder_or_decoder_alone(tiny_head, tmp_path, head):
    tiny_head(head).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is_encoder_decoder=False: .*alone"):
        AutoModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is_encoder_decoder=False: .*alone"):
        VanillaForConditionalGeneration.from_pretrained(tmp_path)


def test_a_model_of_a_config_without_both_sides_is_refused(tiny_config):
    with pytest.raises(ValueError, match=r"is_encoder_decoder=False: .*alone"):
        VanillaModel(tiny_config(is_encoder_decoder=False))


@every_kind
@pytest.mark.parametrize("tied", ["all", "decoder", "source_target", "none"])
@every_text_head
@torch.no_grad()
def test_a_head_takes_its_weights_from_a_translation_model(tiny_model, tmp_path, head, kind, tied):
    if head is VanillaForCausalLM and tied in ("all", "source_target"):
        tied = "decoder"  # a matrix shared with the encoder is saved under the encoder's name: see the next test
    model = tiny_model(position_encoding=kind, tied_embeddings=tied, decoder_layers=3)
    model.save_pretrained(tmp_path)
    loaded, info = head.from_pretrained(tmp_path, output_loading_info=True)
    side = "decoder" if head is VanillaForCausalLM else "encoder"
    theirs = getattr(model.model, side).state_dict()
    ours = getattr(loaded if head is VanillaEncoderModel else loaded.model, side).state_dict()
    assert ours.keys() == {name for name in theirs if "encoder_attn" not in name}
    for name, x in ours.items():
        assert torch.equal(x, theirs[name]), name
    new = {"classifier.weight", "classifier.bias"} if head is VanillaForSequenceClassification else set()
    assert set(info["missing_keys"]) == new
    if head is VanillaForCausalLM:
        assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize("tied", ["all", "source_target"])
def test_a_language_model_misses_embeddings_that_are_saved_as_the_encoders(tiny_model, tmp_path, tied):
    tiny_model(tied_embeddings=tied).save_pretrained(tmp_path)
    _, info = VanillaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert "model.decoder.embed_tokens.weight" in info["missing_keys"]


@torch.no_grad()
def test_an_image_classifier_takes_the_encoders_layers_from_a_translation_model(tiny_model, tmp_path):
    model = tiny_model(position_encoding="learned")
    model.save_pretrained(tmp_path)
    loaded, info = VanillaForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    theirs = model.model.encoder.state_dict()
    ours = loaded.model.encoder.state_dict()
    assert ours.keys() == theirs.keys() - {"embed_tokens.weight"}
    assert all(torch.equal(x, theirs[name]) for name, x in ours.items())
    new = {f"{name}.{kind}" for name in ("classifier", "patch_projection") for kind in ("weight", "bias")}
    assert set(info["missing_keys"]) == new


@every_text_head
@pytest.mark.parametrize("tied", ["all", "decoder", "none"])
@pytest.mark.parametrize("size", [17, 25])
@torch.no_grad()
def test_resizing_the_vocabulary_survives_a_file(tiny_head, tmp_path, head, tied, size):
    model = tiny_head(head, tied_embeddings=tied, output_bias=True)
    before = model.get_input_embeddings().weight.clone()
    model.resize_token_embeddings(size)
    stack = model if head is VanillaEncoderModel else model.model
    for config in (model.config, stack.config):
        assert (config.vocab_size, config.decoder_vocab_size) == (size, size)
    weight = model.get_input_embeddings().weight
    assert weight.shape == (size, 16)
    assert torch.equal(weight[: min(size, 20)], before[: min(size, 20)])
    inputs = {"input_ids": torch.tensor([[3, size - 1]])}
    output = model(**inputs)[0]
    if head is VanillaForCausalLM:
        assert output.shape == (1, 2, size)
        assert (model.lm_head.weight is weight) == (tied != "none")
    model.save_pretrained(tmp_path)
    assert torch.equal(head.from_pretrained(tmp_path)(**inputs)[0], output)


@pytest.mark.parametrize("head", TEXT, ids=lambda head: head.__name__)
def test_resizing_reaches_a_head_made_from_two_vocabularies(tiny_head, tmp_path, head):
    model = tiny_head(head, vocab_size=20, decoder_vocab_size=30, tied_embeddings="none")
    assert len(model.get_input_embeddings().weight) == (30 if head is VanillaForCausalLM else 20)
    model.resize_token_embeddings(33)
    assert len(model.get_input_embeddings().weight) == model.config.vocab_size == 33
    inputs = {"input_ids": torch.tensor([[3, 32]])}
    expected = model(**inputs)[0]
    if head is VanillaForCausalLM:
        assert expected.shape == (1, 2, 33)
    model.save_pretrained(tmp_path)
    assert torch.equal(head.from_pretrained(tmp_path)(**inputs)[0], expected)


@every_head
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradient_checkpointing_gives_the_same_gradients(tiny_head, head, dropout):
    model = tiny_head(head, dropout=dropout).train()
    inputs = inputs_of(head)

    def seeded_gradients():
        torch.manual_seed(7)
        output = model(**inputs)[0]
        return gradients_of(model, (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum())

    expected = seeded_gradients()
    model.activation_checkpointing_enable()
    calls = []
    stack = next(module for module in model.modules() if hasattr(module, "layers"))
    stack.layers[0].fc1.register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(seeded_gradients(), expected, rtol=1e-5, atol=1e-6)
    assert len(calls) == 2  # computed, and computed again


@every_head
@torch.no_grad()
def test_half_precision_is_near_float32(tiny_head, tmp_path, head):
    model = tiny_head(head)
    inputs = inputs_of(head)
    expected = model(**inputs)[0]
    model.save_pretrained(tmp_path)
    half = head.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {x.dtype for x in half.parameters()} == {torch.bfloat16}
    output = half(**inputs)[0]
    assert output.dtype == torch.bfloat16
    assert (output.float() - expected).norm() < 2**-5 * expected.norm()


@every_head
def test_a_tuple_is_returned_on_request(tiny_head, head):
    model, inputs = tiny_head(head), inputs_of(head)
    assert torch.equal(model(**inputs, return_dict=False)[0], model(**inputs)[0])


@every_head
@torch.no_grad()
def test_attentions_and_hidden_states_come_on_request(tiny_head, head):
    model, inputs = tiny_head(head), inputs_of(head)
    output = model(**inputs, output_attentions=True, output_hidden_states=True)
    S = 4 if head is VanillaForImageClassification else 5
    assert [x.shape for x in output.attentions] == [(3, 2, S, S)] * 2
    assert [x.shape for x in output.hidden_states] == [(3, S, 16)] * 3


# --- the encoder ---


@every_kind
@torch.no_grad()
def test_the_encoder_model_is_the_translation_models_encoder(tiny_model, tmp_path, kind):
    model = tiny_model(position_encoding=kind)
    model.save_pretrained(tmp_path)
    loaded = VanillaEncoderModel.from_pretrained(tmp_path)
    for side in ("right", "left"):
        ids, mask = random_padded([5, 3, 0], side)
        expected = model.get_encoder()(ids, mask).last_hidden_state
        assert torch.equal(loaded(ids, mask).last_hidden_state, expected)
        embeds = loaded.get_input_embeddings()(ids)
        assert torch.equal(loaded(inputs_embeds=embeds, attention_mask=mask).last_hidden_state, expected)


# --- classifying texts ---


def pooled_by_hand(model, ids, mask) -> torch.Tensor:
    """Logits of the mean over each text's tokens, one by one."""
    states = model.model(ids, mask).last_hidden_state
    rows = []
    for b in range(len(ids)):
        total, n = torch.zeros(states.shape[-1]), 0
        for t in range(ids.shape[1]):
            if mask[b, t]:
                total, n = total + states[b, t], n + 1
        rows.append(total / max(n, 1))
    return nn.functional.linear(torch.stack(rows), model.classifier.weight, model.classifier.bias)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("lengths", [[5, 3, 1], [1], [4, 0]], ids=str)
@torch.no_grad()
def test_a_texts_vector_is_the_mean_of_its_tokens(tiny_head, side, lengths):
    model = tiny_head(VanillaForSequenceClassification)
    ids, mask = random_padded(lengths, side, extra=1)
    torch.testing.assert_close(model(ids, mask).logits, pooled_by_hand(model, ids, mask), rtol=1e-5, atol=1e-6)
    everything = torch.ones_like(mask)
    torch.testing.assert_close(model(ids).logits, pooled_by_hand(model, ids, everything), rtol=1e-5, atol=1e-6)


@every_kind
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_a_text_is_classified_as_it_is_alone(tiny_head, side, kind):
    model = tiny_head(VanillaForSequenceClassification, position_encoding=kind)
    texts = [torch.randint(3, 20, (length,)) for length in (6, 3, 1)]
    alone = torch.cat([model(text[None]).logits for text in texts])
    torch.testing.assert_close(model(*padded(texts, side, extra=2)).logits, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_a_text_of_nothing_but_padding_is_finite(tiny_head, backend):
    model = tiny_head(VanillaForSequenceClassification, attn_implementation=backend).train()
    ids, mask = random_padded([4, 0], "left")
    output = model(ids, mask, labels=torch.tensor([0, 2]))
    torch.testing.assert_close(output.logits[1], model.classifier.bias)  # the mean of nothing is taken for 0
    assert all(x.isfinite().all() for x in gradients_of(model, output.loss).values())


PROBLEMS = {  # the number of labels, labels of eight texts, and PyTorch's loss
    "single_label_classification": (3, torch.tensor([0, 2, 1, 1, 0, 2, 2, 1]), nn.functional.cross_entropy),
    "multi_label_classification": (
        3,
        (torch.arange(24).view(8, 3) % 5 < 2).float(),
        nn.functional.binary_cross_entropy_with_logits,
    ),
    "regression": (1, torch.linspace(-2, 2, 8), nn.functional.mse_loss),
    "regression of several": (2, torch.linspace(-2, 2, 16).view(8, 2), nn.functional.mse_loss),
}
every_problem = pytest.mark.parametrize("problem", PROBLEMS)


def problem_of(tiny_head, head, problem: str, is_named: bool = True):
    L, labels, loss = PROBLEMS[problem]
    names = {"problem_type": problem.split(" ")[0]} if is_named else {}
    return tiny_head(head, num_labels=L, **names).train(), labels, loss


both_classifiers = pytest.mark.parametrize(
    "head", [VanillaForSequenceClassification, VanillaForImageClassification], ids=lambda head: head.__name__
)
LENGTHS = [5, 3, 1, 2, 6, 4, 4, 1]


@both_classifiers
@every_problem
@pytest.mark.parametrize("is_named", [True, False])
def test_the_loss_is_pytorchs(tiny_head, head, problem, is_named):
    if problem == "regression of several" and not is_named:
        pytest.skip("numbers of several labels are taken for truth values, unless the config says otherwise")
    model, labels, loss = problem_of(tiny_head, head, problem, is_named)
    output = model(**inputs_of(head, LENGTHS), labels=labels)
    logits = output.logits.squeeze(-1) if problem == "regression" else output.logits
    torch.testing.assert_close(output.loss, loss(logits, labels))


@both_classifiers
@every_problem
@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("pieces", [[2, 2, 2, 2], [1, 4, 3]], ids=str)
def test_a_batch_in_pieces_gives_the_gradients_of_the_whole(tiny_head, head, problem, as_tensor, pieces):
    model, labels, _ = problem_of(tiny_head, head, problem)
    inputs = inputs_of(head, LENGTHS)
    whole = model(**inputs, labels=labels).loss
    expected = gradients_of(model, whole)
    n = (labels != -100).sum() if as_tensor else labels.numel()  # what Trainer counts
    parts = [{name: x.split(pieces)[i] for name, x in inputs.items()} for i in range(len(pieces))]
    losses = [
        model(**part, labels=piece, num_items_in_batch=n).loss
        for part, piece in zip(parts, labels.split(pieces), strict=True)
    ]
    torch.testing.assert_close(sum(losses), whole)
    torch.testing.assert_close(gradients_of(model, *losses), expected, rtol=1e-5, atol=1e-6)


class Examples(torch.utils.data.Dataset):
    def __init__(self, columns: dict[str, torch.Tensor]):
        self.columns = columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, i):
        return {name: x[i] for name, x in self.columns.items()}


def trained_once(model, columns, folder, **settings) -> tuple[dict[str, torch.Tensor], float]:
    """The weights after one plain step of a stock Trainer over eight examples, and the loss it logs."""
    arguments = TrainingArguments(
        folder, max_steps=1, learning_rate=0.1, optim="sgd", max_grad_norm=0, use_cpu=True, report_to="none",
        save_strategy="no", logging_steps=1, disable_tqdm=True, train_sampling_strategy="sequential",
        lr_scheduler_type="constant", **settings,
    )  # fmt: skip
    model = copy.deepcopy(model)
    trainer = Trainer(model, arguments, train_dataset=Examples(columns))
    trainer.train()
    return {name: x.detach() for name, x in model.named_parameters()}, trainer.state.log_history[0]["loss"]


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        *((VanillaForSequenceClassification, problem) for problem in PROBLEMS),
        (VanillaForImageClassification, "single_label_classification"),
    ],
)
def test_a_stock_trainer_takes_the_same_step_with_accumulation(tiny_head, tmp_path, head, problem):
    model, labels, _ = problem_of(tiny_head, head, problem)
    columns = inputs_of(head, LENGTHS) | {"labels": labels}
    whole, loss = trained_once(model, columns, tmp_path, per_device_train_batch_size=8)
    pieces, sum_of_losses = trained_once(
        model, columns, tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4
    )
    assert (whole["classifier.weight"] - model.classifier.weight).abs().max() > 1e-4
    torch.testing.assert_close(pieces, whole, rtol=1e-5, atol=1e-6)
    assert sum_of_losses == pytest.approx(loss, rel=1e-5)


@both_classifiers
@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_stock_trainer_smooths_labels(tiny_head, tmp_path, head, accumulation):
    model, labels, _ = problem_of(tiny_head, head, "single_label_classification")
    inputs = inputs_of(head, LENGTHS)
    settings = {"per_device_train_batch_size": 8 // accumulation, "gradient_accumulation_steps": accumulation}
    weights, loss = trained_once(model, inputs | {"labels": labels}, tmp_path, label_smoothing_factor=0.1, **settings)
    expected = nn.functional.cross_entropy(model(**inputs).logits, labels, label_smoothing=0.1)
    assert loss == pytest.approx(expected.item(), rel=1e-4)
    for name, gradient in gradients_of(model, expected).items():
        moved = model.get_parameter(name) - 0.1 * gradient
        torch.testing.assert_close(weights[name], moved, rtol=1e-5, atol=1e-6)


# --- classifying images ---


def seen_patches(model, pixels: torch.Tensor) -> torch.Tensor:
    """What the encoder gets for its tokens, `(B, S, D)`."""
    seen = []
    handle = model.model.encoder.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["inputs_embeds"]), with_kwargs=True
    )
    model(pixels)
    handle.remove()
    return seen[0]


SIZES = [(8, 4, 3), (9, 3, 1), (4, 4, 2), (6, 1, 3)]  # image, patch, channels


@pytest.mark.parametrize(("image_size", "patch_size", "num_channels"), SIZES)
@torch.no_grad()
def test_patches_are_a_convolution_whose_stride_is_its_kernel(tiny_head, image_size, patch_size, num_channels):
    sizes = {"image_size": image_size, "patch_size": patch_size, "num_channels": num_channels}
    model = tiny_head(VanillaForImageClassification, **sizes, max_position_embeddings=64)
    pixels = torch.randn(2, num_channels, image_size, image_size)
    convolution = nn.Conv2d(num_channels, 16, patch_size, stride=patch_size)
    convolution.weight.copy_(model.patch_projection.weight.view_as(convolution.weight))
    convolution.bias.copy_(model.patch_projection.bias)
    expected = convolution(pixels).flatten(2).mT
    torch.testing.assert_close(seen_patches(model, pixels), expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_patches_go_from_left_to_right_and_from_top_to_bottom(tiny_head):
    model = tiny_head(VanillaForImageClassification)
    pixels = torch.randn(2, 3, 8, 8)
    patches = []
    for row in range(2):
        for column in range(2):
            patch = pixels[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            patches.append(patch.reshape(2, -1) @ model.patch_projection.weight.T + model.patch_projection.bias)
    torch.testing.assert_close(seen_patches(model, pixels), torch.stack(patches, 1), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_an_images_logits_are_those_of_its_patches_mean(tiny_head):
    model = tiny_head(VanillaForImageClassification)
    pixels = torch.randn(2, 3, 8, 8)
    states = model.model.encoder(inputs_embeds=seen_patches(model, pixels)).last_hidden_state
    expected = model.classifier((states[:, 0] + states[:, 1] + states[:, 2] + states[:, 3]) / 4)
    torch.testing.assert_close(model(pixels).logits, expected)


@pytest.mark.parametrize("shape", [(3, 8, 12), (1, 8, 8), (3, 16, 16), (8, 8)], ids=str)
def test_images_of_another_shape_are_refused(tiny_head, shape):
    expected = rf"\({', '.join(map(str, shape))}\) for a model of \(3, 8, 8\) .*resize them"
    with pytest.raises(ValueError, match=expected):
        tiny_head(VanillaForImageClassification)(torch.randn(2, *shape))


def test_the_encoder_of_images_is_the_encoder_of_texts(tiny_head):
    image, text = (tiny_head(h) for h in (VanillaForImageClassification, VanillaForSequenceClassification))
    assert type(image.model.encoder) is type(text.model.encoder) is VanillaEncoder
    ours, theirs = image.state_dict().keys(), text.state_dict().keys()
    assert ours - theirs == {"patch_projection.weight", "patch_projection.bias"}
    assert theirs - ours == {"model.encoder.embed_tokens.weight"}


@every_kind
@torch.no_grad()
def test_where_a_patch_lies_matters(tiny_head, kind):
    model = tiny_head(VanillaForImageClassification, position_encoding=kind)
    pixels = torch.randn(2, 3, 8, 8)
    swapped = torch.cat([pixels[:, :, 4:], pixels[:, :, :4]], 2)
    assert (model(swapped).logits - model(pixels).logits).abs().max() > 1e-5


def test_every_weight_of_an_image_classifier_learns(tiny_head):
    model = tiny_head(VanillaForImageClassification, position_encoding="learned", max_position_embeddings=4)
    gradients = gradients_of(model, model(torch.randn(2, 3, 8, 8), labels=torch.tensor([0, 2])).loss)
    assert gradients.keys() == {name for name, _ in model.named_parameters()}
    assert all(x.abs().sum() > 0 for x in gradients.values())


# --- a language model ---


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("output_bias", [False, True])
def test_each_token_is_predicted_from_those_before_it(tiny_head, label_smoothing, output_bias):
    model = tiny_head(VanillaForCausalLM, output_bias=output_bias)
    ids, mask = random_padded([6, 4, 1])
    labels = ids.masked_fill(mask == 0, -100)
    logits = model(ids, mask).logits
    wanted = {"input": logits[:, :-1].flatten(0, 1), "target": labels[:, 1:].flatten()}
    expected = nn.functional.cross_entropy(**wanted, label_smoothing=label_smoothing)
    evaluated = model(ids, mask, labels=labels, label_smoothing=label_smoothing)
    trained = model.train()(ids, mask, labels=labels, label_smoothing=label_smoothing)
    for output in (evaluated, trained):
        torch.testing.assert_close(output.loss, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(output.nll, nn.functional.cross_entropy(**wanted).detach())
    assert torch.equal(evaluated.logits, logits)
    assert trained.logits is None
    gradients = gradients_of(model, expected)
    for output in (evaluated, trained):
        torch.testing.assert_close(gradients_of(model, output.loss), gradients, rtol=1e-5, atol=1e-6)


def test_a_language_models_batch_in_pieces_gives_the_gradients_of_the_whole(tiny_head):
    model = tiny_head(VanillaForCausalLM).train()
    ids, mask = random_padded([6, 4, 1, 5])
    labels = ids.masked_fill(mask == 0, -100)
    expected = gradients_of(model, model(ids, mask, labels=labels).loss)
    n = (labels[:, 1:] != -100).sum()
    losses = [
        model(ids[rows], mask[rows], labels=labels[rows], num_items_in_batch=n).loss
        for rows in (slice(0, 1), slice(1, 4))
    ]
    torch.testing.assert_close(gradients_of(model, *losses), expected, rtol=1e-5, atol=1e-6)


def test_a_text_of_one_token_has_nothing_to_predict(tiny_head):
    model = tiny_head(VanillaForCausalLM).train()
    loss = model(torch.tensor([[5]]), labels=torch.tensor([[5]])).loss
    assert loss == 0
    assert all((x == 0).all() for x in gradients_of(model, loss).values())


@every_kind
@torch.no_grad()
def test_a_later_token_changes_nothing_before_it(tiny_head, kind):
    model = tiny_head(VanillaForCausalLM, position_encoding=kind)
    ids = torch.randint(3, 20, (2, 6))
    logits = model(ids).logits
    for t in range(5):
        changed = ids.clone()
        changed[:, t + 1] = 3 + (changed[:, t + 1] - 2) % 17
        others = model(changed).logits
        torch.testing.assert_close(others[:, : t + 1], logits[:, : t + 1], rtol=1e-6, atol=1e-6)
        assert (others[:, t + 1] - logits[:, t + 1]).abs().max() > 1e-3


STEPS = {"max_new_tokens": 6, "min_new_tokens": 6, "no_repeat_ngram_size": 1, "suppress_tokens": [0]}


@torch.no_grad()
def plain_greedy(model, prompt: torch.Tensor) -> list[int]:
    """Six tokens more, none of them twice, nor padding or the end; everything is computed anew for each."""
    ids = prompt.tolist()
    for _ in range(6):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        logits[[*ids, 0, 2]] = -torch.inf
        ids.append(logits.argmax().item())
    return ids


@every_kind
@pytest.mark.parametrize("cache", [{"use_cache": False}, {}, {"cache_implementation": "static"}], ids=str)
def test_prompts_padded_on_the_left_go_on_as_each_does_alone(tiny_head, kind, cache):
    model = tiny_head(VanillaForCausalLM, position_encoding=kind, decoder_layers=3)
    prompts = [torch.tensor(prompt) for prompt in ([1, 9, 4, 11], [1, 7], [1])]
    ids, mask = padded(prompts, "left")
    rows = model.generate(ids, attention_mask=mask, **STEPS, **cache)
    for row, prompt in zip(rows, prompts, strict=True):
        assert row[4 - len(prompt) :].tolist() == plain_greedy(model, prompt)


def test_beam_search_goes_on_with_a_cache_as_without(tiny_head):
    model = tiny_head(VanillaForCausalLM)
    ids, mask = random_padded([4, 2], "left")
    expected = model.generate(ids, attention_mask=mask, **STEPS, num_beams=3, use_cache=False)
    assert torch.equal(model.generate(ids, attention_mask=mask, **STEPS, num_beams=3), expected)


@pytest.mark.parametrize(
    ("tied", "is_one"), [("all", True), ("decoder", True), ("source_target", False), ("none", False)]
)
def test_a_file_holds_a_tied_matrix_once(tiny_head, tmp_path, tied, is_one):
    model = tiny_head(VanillaForCausalLM, tied_embeddings=tied)
    assert (model.lm_head.weight is model.get_input_embeddings().weight) == is_one
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = sorted(name for name in file.keys() if "embed" in name or "lm_head" in name)  # noqa: SIM118
    assert names == ([] if is_one else ["lm_head.weight"]) + ["model.decoder.embed_tokens.weight"]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (loaded.lm_head.weight is loaded.get_input_embeddings().weight) == is_one


def test_a_language_model_has_no_attention_over_a_source(tiny_head):
    assert not [name for name in tiny_head(VanillaForCausalLM).state_dict() if "encoder" in name]


def test_the_stock_trainer_takes_the_same_step_of_a_language_model_with_accumulation(tiny_head, tmp_path):
    model = tiny_head(VanillaForCausalLM).train()
    ids, mask = random_padded([6, 4, 2, 5, 3, 6, 2, 4])
    columns = {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}
    whole, _ = trained_once(model, columns, tmp_path, per_device_train_batch_size=8)
    pieces, _ = trained_once(model, columns, tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4)
    assert (whole["model.decoder.embed_tokens.weight"] - model.lm_head.weight).abs().max() > 1e-4
    torch.testing.assert_close(pieces, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_stock_trainer_shifts_a_language_models_labels_with_smoothing_too(tiny_head, tmp_path, smoothing):
    """With smoothing it computes the loss by itself, and must know that this model predicts the next token."""
    model = tiny_head(VanillaForCausalLM).train()
    ids = torch.randint(3, 20, (8, 6))
    columns = {"input_ids": ids, "labels": ids}
    expected = nn.functional.cross_entropy(
        model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=smoothing
    )
    settings = {"label_smoothing_factor": smoothing, "per_device_train_batch_size": 8}
    _, loss = trained_once(model, columns, tmp_path, **settings)
    assert loss == pytest.approx(expected.item(), abs=1e-4)


# --- pipelines ---


WORDS = ["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(3, 20))]


@pytest.fixture
def saved(tiny_head, tmp_path):
    """Saves a head with a tokenizer of words beside it."""

    def save(head, **changes):
        tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
        side = "left" if head is VanillaForCausalLM else "right"
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, padding_side=side)
        names = {"id2label": {0: "no", 1: "yes", 2: "perhaps"}, "label2id": {"no": 0, "yes": 1, "perhaps": 2}}
        model = tiny_head(head, **names, **changes)
        model.save_pretrained(tmp_path)
        fast.save_pretrained(tmp_path)
        return model, str(tmp_path)

    return save


TEXTS = {"w5 w6 w7 w8": [5, 6, 7, 8], "w9": [9], "w4 w3": [4, 3]}


@torch.no_grad()
def test_a_pipeline_classifies_texts(saved):
    model, folder = saved(VanillaForSequenceClassification)
    for batch_size in (1, 3):
        results = pipeline("text-classification", folder)(list(TEXTS), batch_size=batch_size, top_k=None)
        for result, ids in zip(results, TEXTS.values(), strict=True):
            expected = model(torch.tensor([ids])).logits[0].softmax(0)
            scores = {one["label"]: one["score"] for one in result}
            assert scores == pytest.approx(
                dict(zip(("no", "yes", "perhaps"), expected.tolist(), strict=True)), rel=1e-4
            )


@torch.no_grad()
def test_a_pipeline_classifies_images(saved):
    model, folder = saved(VanillaForImageClassification)
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(folder)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    results = pipeline("image-classification", folder)(Image.fromarray(pixels))
    pixels = (torch.tensor(pixels).permute(2, 0, 1)[None] / 255 - 0.5) / 0.5
    expected = model(pixels).logits[0].softmax(0).tolist()
    scores = {one["label"]: one["score"] for one in results}
    assert scores == pytest.approx(dict(zip(("no", "yes", "perhaps"), expected, strict=True)), rel=1e-4)


@torch.no_grad()
def test_a_pipeline_resizes_images(saved):
    _, folder = saved(VanillaForImageClassification)
    ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(folder)
    results = pipeline("image-classification", folder)([Image.new("RGB", (31, 17)), Image.new("L", (5, 90))])
    assert [len(result) for result in results] == [3, 3]


def test_a_pipeline_continues_texts(saved):
    model, folder = saved(VanillaForCausalLM)
    generate = pipeline("text-generation", folder)
    for batch_size in (1, 3):
        results = generate(list(TEXTS), batch_size=batch_size, return_tensors=True, do_sample=False, **STEPS)
        for [result], ids in zip(results, TEXTS.values(), strict=True):
            found = [token for token in result["generated_token_ids"] if token != 0]  # the batch's padding
            assert found == plain_greedy(model, torch.tensor(ids))


@torch.no_grad()
def test_a_pipeline_gives_the_vectors_of_tokens(saved):
    model, folder = saved(VanillaEncoderModel)
    extract = pipeline("feature-extraction", VanillaEncoderModel.from_pretrained(folder), tokenizer=folder)
    expected = model(torch.tensor([TEXTS["w4 w3"]])).last_hidden_state
    torch.testing.assert_close(torch.tensor(extract("w4 w3")), expected, rtol=1e-5, atol=1e-6)
