"""LoRA and its relatives on a trained model: PEFT knows our layers, and what comes of it can be kept and merged."""

import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq

from modeling_vanilla.decoding import Translator
from modeling_vanilla.interop.peft import TABLES, default_targets
from modeling_vanilla.training import VanillaTrainer, VanillaTrainingArguments
from modeling_vanilla.training.bad_updates import save_update

from .test_finetuning import PLAIN, lower_case, stock

peft = pytest.importorskip("peft", reason="PEFT is an extra")
pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning", "ignore:.*tied:UserWarning")
SEQ2SEQ = "SEQ_2_SEQ_LM"


def adapted(folder, **settings):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    return peft.get_peft_model(model, peft.LoraConfig(task_type=SEQ2SEQ, **settings))


@pytest.fixture(scope="module")
def batch(trained):
    tokenizer = AutoTokenizer.from_pretrained(trained)
    return dict(DataCollatorForSeq2Seq(tokenizer)([lower_case(tokenizer)[i] for i in range(4)]))


@torch.no_grad()
def logits_of(model, batch) -> torch.Tensor:
    return model.eval()(**batch).logits


@pytest.fixture(scope="module")
def fine_tuned(trained, tmp_path_factory):
    """A model with adapters that the library's trainer trained, and the trainer's folder."""
    folder = tmp_path_factory.mktemp("adapters")
    trainer = stock(trained, folder, model=adapted(trained, r=8), max_steps=30, optim="adamw_torch",
                    learning_rate=1e-2)  # fmt: skip
    trainer.train()
    trainer.save_model()
    return trainer.model, folder


def test_without_targets_named_it_adapts_queries_and_values(trained):
    model = adapted(trained)
    found = {name for name, module in model.base_model.model.named_modules() if hasattr(module, "lora_A")}
    attentions = ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.encoder_attn"]
    assert found == {f"model.{name}.{kind}_proj" for name in attentions for kind in "qv"}


@pytest.mark.parametrize("kind", ["IA3Config", "AdaLoraConfig", "LoHaConfig", "OFTConfig", "LNTuningConfig"])
def test_other_methods_know_our_layers_too(trained, kind):
    settings = {"total_step": 10} if kind == "AdaLoraConfig" else {}
    model = AutoModelForSeq2SeqLM.from_pretrained(trained)
    model = peft.get_peft_model(model, getattr(peft, kind)(task_type=SEQ2SEQ, **settings))
    assert 0 < model.get_nb_trainable_parameters()[0] < 20_000


def test_a_table_that_is_read_later_is_filled_in_then(monkeypatch):
    monkeypatch.delitem(sys.modules, TABLES)
    finders = list(sys.meta_path)
    default_targets()
    import peft.utils.constants as again

    assert again.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING["vanilla"] == ["q_proj", "v_proj"]
    assert sys.meta_path == finders


@pytest.mark.slow
def test_our_package_does_not_wait_for_peft_and_peft_knows_it_all_the_same():
    code = """
import sys, modeling_vanilla
assert "peft" not in sys.modules
from peft import LoraConfig, get_peft_model
config = modeling_vanilla.VanillaConfig(vocab_size=20, d_model=16, encoder_layers=1, decoder_layers=1)
get_peft_model(modeling_vanilla.VanillaForConditionalGeneration(config), LoraConfig(task_type="SEQ_2_SEQ_LM"))
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_training_changes_the_adapters_alone(trained, fine_tuned):
    model, _ = fine_tuned
    original = AutoModelForSeq2SeqLM.from_pretrained(trained).state_dict()
    frozen = {name.replace(".base_layer", ""): weight for name, weight in model.base_model.model.state_dict().items()
              if "lora_" not in name}  # fmt: skip
    assert frozen.keys() == original.keys()
    assert all(torch.equal(weight, original[name]) for name, weight in frozen.items())
    assert all(weight.any() for name, weight in model.state_dict().items() if "lora_B" in name)


def test_the_adapted_model_writes_the_new_domain(trained, fine_tuned):
    model, _ = fine_tuned
    tokenizer = AutoTokenizer.from_pretrained(trained)
    source = torch.tensor([lower_case(tokenizer)[3]["input_ids"]])
    assert tokenizer.decode(model.generate(input_ids=source)[0], skip_special_tokens=True).islower()
    original = AutoModelForSeq2SeqLM.from_pretrained(trained)
    with model.disable_adapter():
        assert torch.equal(model.generate(input_ids=source), original.generate(source))


def test_a_kept_adapter_is_small_no_pickle_and_loads(trained, fine_tuned, batch):
    model, folder = fine_tuned
    assert {path.name for path in folder.glob("*.safetensors")} == {"adapter_model.safetensors"}
    assert (folder / "adapter_model.safetensors").stat().st_size < (trained / "model.safetensors").stat().st_size / 3
    again = peft.PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(trained), folder)
    assert torch.equal(logits_of(again, batch), logits_of(model, batch))
    assert torch.equal(
        logits_of(peft.AutoPeftModelForSeq2SeqLM.from_pretrained(folder), batch), logits_of(model, batch)
    )


def test_the_translator_loads_an_adapters_folder(trained, fine_tuned):
    model, folder = fine_tuned
    tokenizer = AutoTokenizer.from_pretrained(trained)
    source = "The big dog sees the red ball."
    ids = model.eval().generate(input_ids=torch.tensor([tokenizer(source)["input_ids"]]))[0]
    said = tokenizer.decode(ids, skip_special_tokens=True)
    assert Translator.from_pretrained(folder).translate([source])[0].text == said
    assert Translator.from_pretrained(trained).translate([source])[0].text != said
    adapted = Translator(model, tokenizer)
    assert adapted.translate([source])[0].text == said
    assert adapted.score([source], [said])[0].total == pytest.approx(
        Translator.from_pretrained(folder).score([source], [said])[0].total, abs=1e-3
    )


def test_unloaded_it_is_the_model_from_before(trained, fine_tuned, batch):
    _, folder = fine_tuned
    again = peft.PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(trained), folder)
    before = logits_of(AutoModelForSeq2SeqLM.from_pretrained(trained), batch)
    assert not torch.allclose(logits_of(again, batch), before, atol=0.1)
    assert torch.equal(logits_of(again.unload(), batch), before)


TIES = {"all": {}, "source_target": {}, "decoder": {"decoder_vocab_size": 30}, "none": {"decoder_vocab_size": 30}}


@pytest.mark.parametrize("trained_whole", [None, ["lm_head"], ["embed_tokens"], ["embed_tokens", "lm_head"]])
@pytest.mark.parametrize("tied", TIES)
def test_a_merged_model_is_the_same_after_a_file(tiny_model, tmp_path, tied, trained_whole):
    """Whichever matrices are one, and whichever of them PEFT has trained as a whole and so apart."""
    model = tiny_model(tied_embeddings=tied, **TIES[tied])
    model = peft.get_peft_model(model, peft.LoraConfig(task_type=SEQ2SEQ, modules_to_save=trained_whole))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
    batch = {"input_ids": torch.tensor([[4, 5, 6, 2]]), "labels": torch.tensor([[7, 8, 2]])}
    for _ in range(3):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = logits_of(model, batch)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits_of(merged, batch), expected, rtol=1e-4, atol=1e-4)
    merged.save_pretrained(tmp_path)
    again, info = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert torch.equal(logits_of(again, batch), logits_of(merged, batch))
    shared = [embedding.weight for embedding in (again.model.encoder.embed_tokens, again.model.decoder.embed_tokens,
                                                 again.lm_head)]  # fmt: skip
    assert len({id(weight) for weight in shared}) == len({weight.data_ptr() for weight in shared})


def test_our_trainer_trains_adapters_as_well(trained, tmp_path):
    model = adapted(trained)
    data = lower_case(AutoTokenizer.from_pretrained(trained))
    settings = {name: value for name, value in PLAIN.items() if "batch" not in name}
    trainer = VanillaTrainer(model, VanillaTrainingArguments(str(tmp_path), max_tokens=200, **settings),
                             train_dataset=data, eval_dataset=data)  # fmt: skip
    before = trainer.evaluate()["eval_nll"]
    trainer.args.max_steps = 20
    trainer.train()
    assert trainer.evaluate()["eval_nll"] < before


def test_our_trainer_translates_with_adapters_and_keeps_a_bad_update_of_theirs(trained, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(trained)
    data, model = lower_case(tokenizer), adapted(trained)
    trainer = VanillaTrainer(model, VanillaTrainingArguments(str(tmp_path), max_tokens=200), eval_dataset=data,
                             compute_metrics=lambda p: {"rows": len(p.predictions)})  # fmt: skip
    assert trainer.evaluate()["eval_rows"] == len(data)
    batch = DataCollatorForSeq2Seq(tokenizer)([data[0], data[1]])
    rows = save_update(tmp_path, "bad", [dict(batch)], model, tokenizer)
    assert all(row["nll"] > 0 for row in rows)
