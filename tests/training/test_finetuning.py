"""Fine-tuning a trained model with what people have already: the library's trainer, frozen parts, new tokens, PEFT."""

import json
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from modeling_vanilla.training import VanillaTrainer, VanillaTrainingArguments
from tests.fixtures import corpus

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")
ROOT = Path(__file__).parents[2]
PLAIN = {"per_device_train_batch_size": 8, "max_steps": 2, "optim": "sgd", "learning_rate": 0.1, "report_to": "none",
         "save_strategy": "no", "disable_tqdm": True, "lr_scheduler_type": "constant", "use_cpu": True}  # fmt: skip


def load(folder):
    return AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def lower_case(tokenizer, count: int = 16) -> Dataset:
    """A new domain: German without capitals, in sentences of different lengths."""
    pairs = [(source, target.lower()) for source, target in corpus(0, 2700, 2700 // count)[:count]]
    pairs = [(source, " ".join(target.split()[: 3 + i % 4])) for i, (source, target) in enumerate(pairs)]
    return Dataset.from_list([dict(tokenizer(source, text_target=target)) for source, target in pairs])


def stock(folder, output, model=None, **changes) -> Seq2SeqTrainer:
    """The library's trainer with its collator."""
    trained, tokenizer = load(folder)
    model = trained if model is None else model
    function = changes.pop("compute_loss_func", None)
    data = lower_case(tokenizer)
    return Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(str(output), **PLAIN | changes),
        train_dataset=data,
        eval_dataset=data,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model, pad_to_multiple_of=16),  # one shape to compile
        processing_class=tokenizer,
        compute_loss_func=function,
    )


def weights(model) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def cross_entropy(outputs, labels, num_items_in_batch=None):
    """A loss that a user wrote; the trainer pops the labels, and so the model makes logits."""
    return torch.nn.functional.cross_entropy(outputs.logits.mT, labels, reduction="sum") / num_items_in_batch


@pytest.fixture(scope="module")
def batches_of_eight(trained, tmp_path_factory):
    """The weights after two plain updates, and after two with label smoothing."""
    result = {}
    for smoothing in (0.0, 0.1):
        trainer = stock(trained, tmp_path_factory.mktemp("plain"), label_smoothing_factor=smoothing)
        trainer.train()
        result[smoothing] = weights(trainer.model)
    return result


SAME = {
    "accumulated": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    "accumulated, smoothed": {
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "label_smoothing_factor": 0.1,
    },
    "checkpointed": {"gradient_checkpointing": True},
    "checkpointed by its new name": {"activation_checkpointing": True},
    "compiled": {"torch_compile": True, "torch_compile_backend": "eager"},
    "with a loss of one's own": {"compute_loss_func": cross_entropy},
}  # fmt: skip


@pytest.mark.parametrize("how", SAME)
def test_the_stock_trainer_makes_the_updates_of_one_plain_batch(trained, tmp_path, batches_of_eight, how):
    trainer = stock(trained, tmp_path, **SAME[how])
    before = weights(trainer.model)
    trainer.train()
    after, expected = weights(trainer.model), batches_of_eight[SAME[how].get("label_smoothing_factor", 0.0)]
    for name, weight in expected.items():
        torch.testing.assert_close(after[name], weight, rtol=1e-4, atol=1e-6)
    assert max((after[name] - weight).abs().max() for name, weight in before.items()) > 1e-2


def test_the_stock_trainers_smoothed_loss_is_torchs(trained, tmp_path):
    trainer = stock(trained, tmp_path, label_smoothing_factor=0.1, per_device_eval_batch_size=16)
    batch = next(iter(trainer.get_eval_dataloader()))
    labels = batch.pop("labels")
    logits = trainer.model.eval()(**batch).logits
    expected = torch.nn.functional.cross_entropy(logits.mT, labels, label_smoothing=0.1)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_the_stock_trainer_translates_as_the_model_does_and_leaves_its_settings(trained, tmp_path):
    trainer = stock(trained, tmp_path, predict_with_generate=True, per_device_eval_batch_size=5)
    trainer.compute_metrics = lambda prediction: {"sentences": len(prediction.predictions)}
    settings = {name: value for name, value in trainer.model.generation_config.to_dict().items() if value is not None}
    rows = trainer.predict(trainer.eval_dataset).predictions
    assert trainer.evaluate()["eval_sentences"] == 16
    assert settings.items() <= trainer.model.generation_config.to_dict().items()  # the rest gets the library's defaults
    tokenizer = trainer.processing_class
    said = [tokenizer.decode([token for token in row if token >= 0], skip_special_tokens=True) for row in rows]
    model = AutoModelForSeq2SeqLM.from_pretrained(trained)
    for row, sentence in zip(trainer.eval_dataset, said, strict=True):
        ids = model.generate(torch.tensor([row["input_ids"]]))[0]
        assert tokenizer.decode(ids, skip_special_tokens=True) == sentence


def test_a_few_updates_teach_the_new_domain(trained, tmp_path):
    trainer = stock(trained, tmp_path, max_steps=60, optim="adamw_torch", learning_rate=3e-3)
    trainer.train()
    row = trainer.train_dataset[3]
    ids = trainer.model.generate(torch.tensor([row["input_ids"]]))[0]
    assert trainer.processing_class.decode(ids, skip_special_tokens=True).islower()


# Frozen


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("ours", [False, True])
def test_a_frozen_encoder_stays_as_it_was_and_the_decoder_learns(trained, tmp_path, checkpointing, ours):
    trainer = stock(trained, tmp_path, gradient_checkpointing=checkpointing)
    if ours:
        trainer = VanillaTrainer(
            trainer.model,
            VanillaTrainingArguments(str(tmp_path), max_tokens=200, gradient_checkpointing=checkpointing,
                                     **{k: v for k, v in PLAIN.items() if "batch" not in k}),
            train_dataset=trainer.train_dataset,
        )  # fmt: skip
    model = trainer.model
    model.get_encoder().requires_grad_(False)
    before = weights(model)
    trainer.train()
    changed = {name for name, weight in weights(model).items() if not torch.allclose(weight, before[name], atol=1e-7)}
    learns = {name for name in before if name.startswith("model.decoder.layers")}  # the tied matrix is frozen too
    assert changed == {name for name in learns if not name.endswith("k_proj.bias")}  # which the softmax cancels


# New tokens


def test_new_tokens_are_learnt_kept_and_written(trained, tmp_path):
    model, tokenizer = load(trained)
    tokenizer.add_tokens([" Giraffe"])
    model.resize_token_embeddings(len(tokenizer))
    trainer = stock(trained, tmp_path, model=model, max_steps=40, optim="adamw_torch", learning_rate=3e-3)
    pair = tokenizer("The big giraffe sees the red ball.", text_target="Der große Giraffe sieht den roten Ball.")
    trainer.train_dataset = Dataset.from_list([dict(pair)] * 8)
    trainer.processing_class = tokenizer
    trainer.train()
    trainer.save_model()
    again, its_tokenizer = load(tmp_path)
    assert again.config.vocab_size == again.lm_head.out_features == len(tokenizer) == len(its_tokenizer)
    said = its_tokenizer.decode(again.generate(torch.tensor([pair["input_ids"]]))[0], skip_special_tokens=True)
    assert said == "Der große Giraffe sieht den roten Ball."


# Sharded over processes: what accelerate is given


def test_the_fsdp_file_says_what_accelerate_and_our_model_know(tiny_model):
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(ROOT / "configuration" / "accelerate" / "fsdp.yaml"))
    assert config.distributed_type == "FSDP"
    wrapped = set(config.fsdp_config["fsdp_transformer_layer_cls_to_wrap"].split(","))
    assert wrapped == {type(layer).__name__ for stack in (tiny_model().model.encoder, tiny_model().model.decoder)
                       for layer in stack.layers}  # fmt: skip


def test_the_deepspeed_file_is_filled_in_from_the_arguments(tmp_path, monkeypatch):
    """As the library does it; DeepSpeed need not be installed for that, whatever the library asks for."""
    from accelerate.utils.deepspeed import HfDeepSpeedConfig
    from transformers.integrations import deepspeed

    class Config(deepspeed.HfTrainerDeepSpeedConfig, HfDeepSpeedConfig):
        pass

    monkeypatch.setattr(deepspeed, "dep_version_check", lambda _: None)
    settings = {"gradient_accumulation_steps": 4, "max_grad_norm": 0.5, "bf16": True, "use_cpu": True}
    config = Config(str(ROOT / "configuration" / "accelerate" / "deepspeed_zero2.json"))
    config.trainer_config_process(VanillaTrainingArguments(str(tmp_path), report_to="none", **settings))
    deepspeed.unset_hf_deepspeed_config()
    assert (config.is_zero2(), config.is_offload()) == (True, False)
    filled = {"gradient_accumulation_steps": 4, "gradient_clipping": 0.5, "bf16.enabled": True}
    assert {key: config.get_value(key) for key in filled} == filled
    assert "auto" not in json.dumps(config.config)
    assert not {"optimizer", "scheduler"} & config.config.keys()  # the trainer's own, with the paper's schedule


def test_those_files_are_no_recipes():
    from modeling_vanilla.training.recipe import shipped_names

    assert not {"fsdp", "deepspeed_zero2", "accelerate"} & set(shipped_names())
