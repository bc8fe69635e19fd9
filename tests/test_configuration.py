"""VanillaConfig: what it is by default, that it survives a file, and what it refuses."""

import json

import pytest
from transformers import AutoConfig

from modeling_vanilla import VanillaConfig

# Table 3, row "base", sections 5.1 and 5.4, and figure 1 (norms after the residual, no other dropout, one matrix).
BASE = {
    "vocab_size": 37000,
    "d_model": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "d_k": None,
    "d_v": None,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "activation_function": "relu",
    "dropout": 0.1,
    "attention_dropout": 0,
    "activation_dropout": 0,
    "norm_position": "post",
    "position_encoding": "sinusoidal",
    "sinusoid_layout": "interleaved",
    "position_offset": 0,
    "scale_embedding": True,
    "use_bias": True,
    "tied_embeddings": "all",
}

EVERYTHING_ELSE = {
    "vocab_size": 30,
    "decoder_vocab_size": 40,
    "d_model": 12,
    "encoder_layers": 1,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 4,
    "d_k": 5,
    "d_v": 7,
    "encoder_ffn_dim": 9,
    "decoder_ffn_dim": 11,
    "activation_function": "gelu",
    "dropout": 0,
    "attention_dropout": 0.25,
    "activation_dropout": 0.5,
    "norm_position": "pre",
    "layer_norm_eps": 1e-6,
    "sinusoid_layout": "tensor2tensor",
    "position_offset": 2,
    "max_position_embeddings": 64,
    "scale_embedding": False,
    "use_bias": False,
    "output_bias": True,
    "tied_embeddings": "decoder",
    "tie_word_embeddings": False,
    "pad_token_id": 3,
    "bos_token_id": 4,
    "eos_token_id": [5, 6],
    "decoder_start_token_id": 7,
    "use_cache": False,
    "is_encoder_decoder": False,
    "position_encoding": "alibi",
    "image_size": 28,
    "patch_size": 7,
    "num_channels": 1,
}

# Arguments, and what the message must name: the value, the limit, and the remedy where it is not the limit itself.
REFUSED = [
    *(
        ({name: value}, [f"{name}={value}", "at least 1"])
        for name in (
            "vocab_size",
            "decoder_vocab_size",
            "d_model",
            "encoder_layers",
            "decoder_layers",
            "encoder_attention_heads",
            "decoder_attention_heads",
            "d_k",
            "d_v",
            "encoder_ffn_dim",
            "decoder_ffn_dim",
            "max_position_embeddings",
            "image_size",
            "patch_size",
            "num_channels",
        )
        for value in (0, -3)
    ),
    *(
        ({name: value}, [f"{name}={value}", "at least 0", "below 1"])
        for name in ("dropout", "attention_dropout", "activation_dropout")
        for value in (-0.1, 1, 1.5, float("nan"))
    ),
    ({"layer_norm_eps": -1e-5}, ["layer_norm_eps=-1e-05", "above 0"]),
    ({"encoder_attention_heads": 7}, ["d_model=512", "encoder_attention_heads=7", "give d_k and d_v"]),
    ({"decoder_attention_heads": 7}, ["d_model=512", "decoder_attention_heads=7", "give d_k and d_v"]),
    ({"encoder_attention_heads": 7, "d_k": 64}, ["d_model=512", "encoder_attention_heads=7", "give d_k and d_v"]),
    ({"encoder_attention_heads": 7, "d_v": 64}, ["d_model=512", "encoder_attention_heads=7", "give d_k and d_v"]),
    ({"activation_function": "rellu"}, ["activation_function='rellu'", "relu", "gelu"]),
    ({"position_encoding": "rotary", "d_k": 33, "d_v": 64}, ["d_k=33", "odd", "make it even"]),
    ({"position_encoding": "rotary", "d_model": 24, "decoder_attention_heads": 8}, ["d_k=3", "odd", "make it even"]),
    ({"position_encoding": "rotary", "d_k": 2, "d_v": 2, "sinusoid_layout": "tensor2tensor"}, ["d_k=2", "at least 4"]),
    ({"image_size": 30, "patch_size": 4}, ["image_size=30", "patch_size=4", "change one of them"]),
    ({"d_model": 513, "d_k": 64, "d_v": 64}, ["d_model=513", "odd", "make it even"]),
    ({"d_model": 2, "d_k": 1, "d_v": 1, "sinusoid_layout": "tensor2tensor"}, ["d_model=2", "at least 4"]),
    ({"position_offset": -1}, ["position_offset=-1", "at least 0"]),
    (
        {"decoder_vocab_size": 100},
        ["tied_embeddings='all'", "vocab_size=37000", "decoder_vocab_size=100", "'decoder' or 'none'"],
    ),
    (
        {"decoder_vocab_size": 100, "tied_embeddings": "source_target"},
        ["tied_embeddings='source_target'", "vocab_size=37000", "decoder_vocab_size=100", "'decoder' or 'none'"],
    ),
    ({"pad_token_id": -1}, ["pad_token_id=-1", "from 0 to 36999"]),
    ({"pad_token_id": 37000}, ["pad_token_id=37000", "from 0 to 36999"]),
    (
        {"pad_token_id": 50, "decoder_vocab_size": 50, "tied_embeddings": "decoder"},
        ["pad_token_id=50", "from 0 to 49"],
    ),
    ({"pad_token_id": 50, "vocab_size": 50, "tied_embeddings": "none"}, ["pad_token_id=50", "from 0 to 49"]),
    ({"decoder_start_token_id": -1}, ["decoder_start_token_id=-1", "from 0 to 36999"]),
    (
        {"decoder_start_token_id": 50, "decoder_vocab_size": 50, "tied_embeddings": "decoder"},
        ["decoder_start_token_id=50", "from 0 to 49"],
    ),
    # unknown words
    ({"norm_position": "middle"}, ["norm_position", "middle", "post", "pre"]),
    ({"position_encoding": "fourier"}, ["position_encoding", "fourier", "sinusoidal"]),
    ({"sinusoid_layout": "mixed"}, ["sinusoid_layout", "mixed", "interleaved", "halves", "tensor2tensor"]),
    ({"tied_embeddings": "both"}, ["tied_embeddings", "both", "all", "decoder", "source_target", "none"]),
    # wrong types
    ({"d_model": "512"}, ["d_model", "expected int", "'512'"]),
    ({"d_model": 512.0}, ["d_model", "expected int", "512.0"]),
    ({"d_model": True}, ["d_model", "expected int", "True"]),
    ({"encoder_layers": None}, ["encoder_layers", "expected int", "None"]),
    ({"dropout": "0.1"}, ["dropout", "float", "0.1"]),
    ({"layer_norm_eps": "1e-5"}, ["layer_norm_eps", "expected float", "1e-5"]),
    ({"use_bias": "yes"}, ["use_bias", "expected bool", "yes"]),
    ({"activation_function": 3}, ["activation_function", "expected str", "3"]),
    ({"pad_token_id": None}, ["pad_token_id", "expected int", "None"]),
    ({"decoder_start_token_id": None}, ["decoder_start_token_id", "expected int", "None"]),
    ({"eos_token_id": "</s>"}, ["eos_token_id", "int", "</s>"]),
]


@pytest.mark.parametrize(("name", "value"), BASE.items())
def test_the_default_is_the_papers_base_model(name, value):
    assert getattr(VanillaConfig(), name) == value


def test_the_decoder_vocabulary_defaults_to_the_encoders():
    assert VanillaConfig(vocab_size=100).decoder_vocab_size == 100


@pytest.mark.parametrize("settings", [{}, EVERYTHING_ELSE], ids=["defaults", "everything-else"])
def test_a_saved_config_loads_as_it_was(settings, tmp_path):
    config = VanillaConfig(**settings)
    config.save_pretrained(tmp_path)
    loaded = VanillaConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict()
    assert {name: getattr(loaded, name) for name in settings} == settings


def test_the_round_trip_covers_every_field():
    assert set(VanillaConfig.__annotations__) == set(EVERYTHING_ELSE)


def test_autoconfig_knows_the_saved_file(tmp_path):
    VanillaConfig(d_model=64).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "vanilla"
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is VanillaConfig
    assert config.d_model == 64


def test_autoconfig_knows_the_model_type():
    assert AutoConfig.for_model("vanilla", d_model=64).d_model == 64


@pytest.mark.parametrize(
    ("library_name", "own_name"),
    [
        ("hidden_size", "d_model"),
        ("num_attention_heads", "encoder_attention_heads"),
        ("num_hidden_layers", "encoder_layers"),
    ],
)
def test_the_librarys_names_read_and_write_ours(library_name, own_name):
    config = VanillaConfig(**{library_name: 16})
    assert getattr(config, own_name) == getattr(config, library_name) == 16
    setattr(config, library_name, 32)
    assert getattr(config, own_name) == 32


def test_the_decoders_own_sizes_are_what_its_caches_are_built_from():
    config = VanillaConfig(encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=8)
    decoder = config.get_text_config(decoder=True)
    assert (decoder.num_hidden_layers, decoder.num_attention_heads) == (3, 8)


@pytest.mark.parametrize(
    "settings",
    [
        {"encoder_attention_heads": 7, "d_k": 64, "d_v": 32},
        {"d_model": 2, "encoder_attention_heads": 1, "decoder_attention_heads": 1},
        {"decoder_vocab_size": 100, "tied_embeddings": "decoder"},
        {"decoder_vocab_size": 100, "tied_embeddings": "none"},
        {"eos_token_id": None, "bos_token_id": None},
        {"pad_token_id": 36999, "decoder_start_token_id": 36999},
        {"dropout": 0, "attention_dropout": 0.999},
    ],
    ids=str,
)
def test_values_at_the_edge_are_accepted(settings):
    config = VanillaConfig(**settings)
    assert {name: getattr(config, name) for name in settings} == settings


@pytest.mark.parametrize(("settings", "said"), REFUSED, ids=[str(settings) for settings, _ in REFUSED])
def test_a_config_that_cannot_work_says_what_and_why(settings, said):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  (the message is what is looked at below)
        VanillaConfig(**settings)
    assert [word for word in said if word not in str(refusal.value)] == []


def test_a_bad_file_is_refused_when_loaded(tmp_path):
    VanillaConfig().save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"encoder_attention_heads": 7}))
    with pytest.raises(ValueError, match="encoder_attention_heads=7"):
        VanillaConfig.from_pretrained(tmp_path)


def test_a_wrong_type_is_refused_when_assigned():
    config = VanillaConfig()
    with pytest.raises(ValueError, match="d_model"):
        config.d_model = "wide"


def test_a_config_spoilt_by_assignment_is_not_saved(tmp_path):
    config = VanillaConfig()
    config.encoder_attention_heads = 7
    with pytest.raises(ValueError, match="encoder_attention_heads=7"):
        config.save_pretrained(tmp_path)
    assert not (tmp_path / "config.json").exists()
