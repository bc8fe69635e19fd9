"""What goes to the Hub, what doesn't, and what is said when it can't."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from datasets import Dataset
from huggingface_hub import HfApi, metadata_load
from transformers import AutoModelForSeq2SeqLM

import modeling_vanilla
from modeling_vanilla.data.tokenizer import train_tokenizer
from modeling_vanilla.interop import int8
from modeling_vanilla.interop.hub import push
from modeling_vanilla.scripts import main, train
from modeling_vanilla.training import VanillaTrainer, VanillaTrainingArguments
from tests.fixtures import train_words, write_corpus
from tests.hub.server import OTHER, READER, WRITER, sha256

CODE = {path.name for path in Path(modeling_vanilla.__file__).parent.glob("*.py") if path.name != "__init__.py"}
MODEL = {"config.json", "generation_config.json", "model.safetensors"}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json"}
CARD = """---
language: [en, de]
---
# A card

![the curve](curve.png) ![not here](https://example.org/far.png) ![outside](../secret.png)
"""


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["a small dog", "ein kleiner Hund"] * 100, 280, model_max_length=20)


@pytest.fixture
def folder(tmp_path, tiny_model, tokenizer):
    """A model's folder as `vanilla train` leaves it, and more than that."""
    folder = tmp_path / "my_model"
    tiny_model(vocab_size=280).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(CARD)
    for name in (
        "curve.png", "stray.png", "../secret.png", "results.json", "recipe.yaml", "training_args.bin", "optimizer.pt",
        "pytorch_model.bin", "checkpoint-7/model.safetensors", "checkpoint-7/optimizer.pt", "translations/test.txt",
        "unfinished-checkpoint/checkpoint-8/model.safetensors", "runs/events.out.tfevents.1", "model.pkl", ".env",
        "running_loss_0.json", "trainer_state.json", "model-00009-of-00009.safetensors",
    ):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"content")
    return folder


def one_line_error(capsys, *words) -> str:
    """Runs `vanilla push`, which must end with status 2 and one line, and without telling a token."""
    assert main.main(["push", *map(str, words)]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if "error:" in line]
    assert len(lines) == 1, captured.err
    assert "Traceback" not in captured.err
    assert "hf_" not in captured.err + captured.out
    return lines[0]


# What goes up -------------------------------------------------------------------------------------------------------


def test_a_model_its_tokenizer_card_and_code_go_up_and_nothing_else(hub, folder, capsys):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main.main(["push", str(folder), "me/en-de"]) == 0
    assert capsys.readouterr() == (f"{hub.url}/me/en-de\n", "")  # no bars, and no line for each request
    files = hub.files("me/en-de")
    assert set(files) == {".gitattributes", "README.md", "curve.png", *MODEL, *TOKENIZER, *CODE}
    for name in MODEL - {"config.json"} | TOKENIZER | {"README.md", "curve.png"}:
        assert files[name] == (folder / name).read_bytes()
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    config = json.loads(files["config.json"])
    assert len(config.pop("auto_map")) == 7
    assert config == json.loads((folder / "config.json").read_text())
    assert not hub.repositories["model", "me/en-de"].private


def test_a_card_of_ours_names_the_repository_wherever_the_folder_is_now(hub, trained, tmp_path):
    for name in ("config.json", "model.safetensors", "results.json", "README.md"):
        (tmp_path / "moved").mkdir(exist_ok=True)
        (tmp_path / "moved" / name).write_bytes((trained / name).read_bytes())
    push(tmp_path / "moved", "en-de")
    uploaded = hub.files("me/en-de")["README.md"].decode()
    assert metadata_load(tmp_path / "moved" / "README.md")["model-index"][0]["name"] == "model"
    assert yaml.safe_load(uploaded.split("---")[1])["model-index"][0]["name"] == "en-de"
    assert uploaded.count('("me/en-de"') == 4
    assert (tmp_path / "moved" / "README.md").read_bytes() == (trained / "README.md").read_bytes()


@pytest.mark.parametrize("change", ["card", "results", "broken results", "no jinja2"])
def test_a_card_that_is_not_made_of_the_results_goes_up_as_it_is(hub, trained, tmp_path, monkeypatch, change):
    for name in ("config.json", "model.safetensors", "results.json", "README.md"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    if change == "card":
        (tmp_path / "README.md").write_text((trained / "README.md").read_text() + "\nMy own words.\n")
    elif change == "results":
        (tmp_path / "results.json").write_text('{"results": []}')
    elif change == "broken results":
        (tmp_path / "results.json").write_text("{")
    else:
        monkeypatch.setitem(sys.modules, "jinja2", None)
    push(tmp_path, "me/en-de")
    assert hub.files("me/en-de")["README.md"] == (tmp_path / "README.md").read_bytes()


def test_int8_weights_are_not_shared(hub, trained, tmp_path, capsys):
    """Without this package, whole numbers would be taken for the weights."""
    int8.convert(trained, tmp_path / "int8")
    error = one_line_error(capsys, tmp_path / "int8", "me/en-de")
    assert f"{tmp_path / 'int8'}: a model with int8 weights can't be shared" in error
    assert "--to int8` make it where it is used" in error
    assert not hub.requests
    with pytest.raises(ValueError, match="int8 weights can't be shared"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "int8").push_to_hub("me/en-de")
    assert "model.safetensors" not in hub.files("me/en-de")


def test_a_repository_is_made_private(hub, folder):
    assert main.main(["push", str(folder), "en-de", "--private"]) == 0
    assert hub.repositories["model", "me/en-de"].private


def test_a_public_repository_gets_nothing_that_is_to_be_private(hub, folder, capsys):
    push(folder, "me/en-de")
    before = hub.files("me/en-de")
    (folder / "README.md").write_text("---\nlanguage: de\n---\nSecret.")
    assert "public" in one_line_error(capsys, folder, "me/en-de", "--private")
    assert hub.files("me/en-de") == before


def test_a_branch_is_made_and_main_stays(hub, folder):
    push(folder, "me/en-de")
    first = hub.files("me/en-de")
    (folder / "README.md").write_text("---\nlanguage: de\n---\nAnother.")
    for _ in range(2):  # made, then there
        push(folder, "me/en-de", revision="v2/a")
    assert hub.files("me/en-de") == first
    assert hub.files("me/en-de", "v2/a")["README.md"].endswith(b"Another.")


def test_what_is_there_is_not_sent_again(hub, folder):
    commit = push(folder, "me/en-de").oid
    del hub.requests[:]
    assert push(folder, "me/en-de").oid == commit
    assert not [request for request in hub.requests if request.startswith("PUT")]


def test_what_was_of_another_model_goes(hub, folder, tmp_path):
    """Beside an adapter's config `from_pretrained` would load the adapter's base, and an older tokenizer's tokens."""
    old = (
        "adapter_config.json",
        "adapter_model.safetensors",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.txt",
    )
    (tmp_path / "old").mkdir()
    for name in (*old, "notes.txt"):
        (tmp_path / "old" / name).write_text("{}")
    HfApi(token=WRITER).create_repo("me/en-de")
    HfApi(token=WRITER).upload_folder(repo_id="me/en-de", folder_path=tmp_path / "old")
    push(folder, "me/en-de")
    assert not hub.files("me/en-de").keys() & {*old}
    assert "notes.txt" in hub.files("me/en-de")


def test_pictures_are_found_however_the_card_shows_them(hub, folder, caplog):
    shown = ["![a](a.png \"A\")", "![b](my%20b.png)", "![c](<my c.png>)", '<img width="9" src="d.png">',
             "![a [e] f](e.png)", "![f](./sub/../f.png)", "![far](https://example.org)", "![lost](h.png)"]  # fmt: skip
    there = ("a.png", "my b.png", "my c.png", "d.png", "e.png", "f.png")
    for name in there:
        (folder / name).write_bytes(b"picture")
    (folder / "README.md").write_text(CARD + "\n".join(shown))
    push(folder, "me/en-de")
    assert set(there) <= hub.files("me/en-de").keys()
    assert "shows h.png, which isn't in the folder" in caplog.text
    assert "example.org" not in caplog.text


@pytest.mark.parametrize("first", [True, False])
def test_weights_under_other_names_go(hub, tmp_path, tiny_model, first):
    """Or else `from_pretrained` would find the old ones first."""
    old, new = tiny_model(), tiny_model()
    old.save_pretrained(tmp_path / "old", max_shard_size="5KB" if first else "1GB")
    new.save_pretrained(tmp_path / "new", max_shard_size="1GB" if first else "5KB")
    for name in ("old", "new"):
        push(tmp_path / name, "me/en-de")
    weights = {name for name in hub.files("me/en-de") if "safetensors" in name}
    assert weights == {path.name for path in (tmp_path / "new").glob("*safetensors*")}
    assert (weights == {"model.safetensors"}) == first
    loaded = AutoModelForSeq2SeqLM.from_pretrained("me/en-de")
    assert all(weight.equal(new.state_dict()[name]) for name, weight in loaded.state_dict().items())


def test_a_space_of_the_model_goes_up_beside_it(hub, folder, capsys):
    assert main.main(["push", str(folder), "en-de", "--private", "--space"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{hub.url}/me/en-de", f"{hub.url}/spaces/me/en-de"]
    assert {"app.py", "requirements.txt", "README.md"} <= set(hub.files("me/en-de", kind="space"))
    assert 'build("me/en-de")' in hub.files("me/en-de", kind="space")["app.py"].decode()
    assert "model.safetensors" in hub.files("me/en-de")


def test_a_space_of_another_revision_is_refused(hub, folder, capsys):
    """Its page loads main, where the model would not be."""
    assert "--space --revision" in one_line_error(capsys, folder, "en-de", "--revision", "v2", "--space")


def test_a_space_goes_up_as_it_is(hub, tmp_path):
    for name in ("app.py", "README.md", "pictures/a.svg", "secret.pkl", ".env", "__pycache__/app.pyc"):
        (tmp_path / "space" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "space" / name).write_text(name)
    with pytest.warns(UserWarning, match="metadata"):  # the Hub's own about the card
        push(tmp_path / "space", "me/page", repo_type="space", space_sdk="gradio", private=True)
    files = hub.files("me/page", kind="space")
    assert set(files) - {".gitattributes"} == {"app.py", "README.md", "pictures/a.svg"}


# From Python --------------------------------------------------------------------------------------------------------


def test_push_to_hub_of_model_config_and_tokenizer(hub, tmp_path, tiny_model, tokenizer):
    model = tiny_model(vocab_size=280)
    tokenizer.push_to_hub("me/en-de")
    model.push_to_hub("me/en-de", private=True)
    files = hub.files("me/en-de")
    assert set(files) == {".gitattributes", "README.md", *MODEL, *TOKENIZER, *CODE}
    auto_map = json.loads(files["config.json"])["auto_map"]
    model.config.push_to_hub("me/config")
    assert {*CODE, "config.json"} <= set(hub.files("me/config"))
    assert json.loads(hub.files("me/config")["config.json"])["auto_map"] == auto_map
    model.save_pretrained(tmp_path / "saved")  # without
    assert {path.name for path in (tmp_path / "saved").iterdir()} == MODEL
    assert "auto_map" not in json.loads((tmp_path / "saved" / "config.json").read_text())


def test_push_to_hub_of_the_trainer(hub, tmp_path, tiny_model, tokenizer):
    """The finished model, whatever `set_push_to_hub` says of checkpoints."""
    arguments = VanillaTrainingArguments(
        str(tmp_path / "run"), max_steps=2, report_to="none", save_strategy="steps", save_steps=1
    )
    arguments.set_push_to_hub("me/en-de", strategy="all_checkpoints", private_repo=True)
    pairs = Dataset.from_dict({"input_ids": [[3, 4, 2]] * 4, "labels": [[5, 6, 2]] * 4})
    trainer = VanillaTrainer(tiny_model(vocab_size=280), arguments, train_dataset=pairs, processing_class=tokenizer)
    trainer.train()
    assert set(hub.files("me/en-de")) == {".gitattributes"}
    commit = trainer.push_to_hub()
    assert commit.repo_url.repo_id == "me/en-de"
    assert set(hub.files("me/en-de")) == {".gitattributes", "README.md", *MODEL, *TOKENIZER, *CODE}
    assert hub.repositories["model", "me/en-de"].private
    card = hub.files("me/en-de")["README.md"].decode()
    assert "trained from scratch" in card
    assert "base_model" not in card
    assert trainer.push_to_hub(revision="v2", blocking=False).result().repo_url == commit.repo_url
    assert "model.safetensors" in hub.files("me/en-de", "v2")


@pytest.mark.parametrize("strategy", ["every_save", "checkpoint", "all_checkpoints"])
def test_a_run_that_is_to_share_checkpoints_is_refused(tmp_path, strategy):
    with pytest.raises(ValueError, match=f"hub_strategy='{strategy}'"):
        VanillaTrainingArguments(str(tmp_path), hub_strategy=strategy)


def test_a_run_is_pushed_when_it_is_finished_and_keeps_the_token_to_itself(hub, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    words = train_words(
        write_corpus(tmp_path / "data"), tmp_path / "out", max_steps=2, save_strategy="steps", save_steps=1,
        push_to_hub="true", hub_model_id="me/en-de", hub_token=WRITER, hub_private_repo="true",
    )  # fmt: skip
    assert train.run(words) == 0
    assert set(hub.files("me/en-de")) == {".gitattributes", "README.md", *MODEL, *TOKENIZER, *CODE}
    uploaded, own = hub.files("me/en-de")["README.md"].decode(), (tmp_path / "out" / "README.md").read_text()
    assert "BLEU" in uploaded
    assert own.count("out") == uploaded.count("out") + 6  # the title, the metadata's name, and twice two examples
    for text in ("# me/en-de\n", "name: en-de\n", 'from_pretrained("me/en-de")', '"me/en-de", trust_remote_code=True)'):
        assert text in uploaded
    assert len(hub.repositories["model", "me/en-de"].commits) == 2  # the repository's first one, and this
    for path in (tmp_path / "out").iterdir():
        assert path.is_dir() or WRITER.encode() not in path.read_bytes()
    assert not (tmp_path / "out" / "training_args.bin").exists()


def test_a_run_that_could_not_push_says_what_is_left_to_do(hub, tmp_path, capsys):
    words = train_words(
        write_corpus(tmp_path / "data"), tmp_path / "out", max_steps=1, push_to_hub="true", hub_model_id="me/en-de"
    )
    hub.fail("POST", "/commit/", 503)
    assert train.run(words) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "finished, but not pushed" in error
    assert f"vanilla push {tmp_path / 'out'} me/en-de" in error


# What goes wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "not logged in: run `hf auth login`"),
        ("hf_nobody", "doesn't accept this token"),
        (READER, "may not write there"),
        (OTHER, "may not write there"),
    ],
)
def test_without_the_right_to_write(hub, folder, capsys, monkeypatch, token, message):
    monkeypatch.delenv("HF_TOKEN")
    words = [] if token is None else ["--token", token]
    assert message in one_line_error(capsys, folder, "me/en-de", *words)
    assert not hub.repositories


@pytest.mark.parametrize("token", [READER, OTHER])
def test_a_repository_that_is_another_s(hub, folder, capsys, token):
    push(folder, "me/en-de")
    before = hub.files("me/en-de")
    assert "may not write there" in one_line_error(capsys, folder, "me/en-de", "--token", token)
    assert hub.files("me/en-de") == before


@pytest.mark.parametrize("name", ["a b", "a--b", "x/y/z", "-a", "", "ü", "me/" + "a" * 97, "../up"])
def test_names_that_no_repository_can_have(hub, folder, capsys, name):
    error = one_line_error(capsys, folder, "--", name)
    assert "can't be a repository's name" in error or "Invalid repository name" in error
    assert not hub.repositories


def damage(folder, what: str):
    """A folder that isn't to be pushed, and what is to be said of it."""
    config, index = folder / "config.json", folder / "model.safetensors.index.json"
    if what == "no folder":
        return folder / "nowhere", "not a model"
    if what == "empty":
        (folder / "empty").mkdir()
        return folder / "empty", "not a model"
    if what == "a file":
        return config, "not a model"
    if what == "another model":
        config.write_text('{"model_type": "marian"}')
        return folder, "model_type='marian'"
    if what == "broken config":
        config.write_text("{")
        return folder, "config.json: can't be read"
    if what == "config of another kind":
        config.write_text("[]")
        return folder, "config.json: must hold"
    if what == "beside an adapter":
        (folder / "adapter_config.json").write_text("{}")
        return folder, "holds an adapter beside a model"
    (folder / "model.safetensors").unlink()
    if what == "no weights":
        return folder, "model.safetensors is missing"
    weight_map = (
        {"a": "../model.safetensors"} if what == "shard elsewhere" else {"a": "model-00001-of-00002.safetensors"}
    )
    index.write_text(json.dumps({"weight_map": [] if what == "broken index" else weight_map}))
    return folder, "no weight_map" if what == "broken index" else "is missing"


@pytest.mark.parametrize(
    "what",
    [
        *("no folder", "empty", "a file", "another model", "broken config", "config of another kind", "no weights"),
        *("shard missing", "shard elsewhere", "broken index", "beside an adapter"),
    ],
)
def test_a_folder_that_is_no_model(hub, folder, capsys, what):
    damaged, message = damage(folder, what)
    assert message in one_line_error(capsys, damaged, "me/en-de")
    assert not hub.requests


@pytest.mark.parametrize("token", [WRITER, f"hf_oauth_{'eyJ-a_1.' * 6}", f"hf_jwt_{'eyJ-a_1.' * 6}"])
@pytest.mark.parametrize("name", ["README.md", "generation_config.json", "tokenizer_config.json"])
def test_a_token_does_not_go_up(hub, folder, capsys, name, token):
    (folder / name).write_text(json.dumps({"token": token}))
    assert f"{name}: holds an access token" in one_line_error(capsys, folder, "me/en-de")
    assert not hub.requests


def test_metadata_that_the_hub_refuses(hub, folder, capsys):
    (folder / "README.md").write_text("---\nlanguage: [en\n---\nA card.")
    assert "Invalid metadata in README.md" in one_line_error(capsys, folder, "me/en-de")
    assert set(hub.files("me/en-de")) == {".gitattributes"}


@pytest.mark.parametrize("revision", ["a" * 40, "refs/pr/9"])
def test_a_revision_that_cannot_be_a_branch(hub, folder, capsys, revision):
    error = one_line_error(capsys, folder, "me/en-de", "--revision", revision)
    assert "the Hub refuses" in error
    assert revision in error


@pytest.mark.parametrize(
    "where", ["/repos/create", "/branch/", "/validate-yaml", "/preupload/", "/objects/batch", "/commit/"]
)
def test_too_many_requests(hub, folder, capsys, where):
    hub.fail("POST", where, 429, retry_after="7")
    assert "too many requests (429: as was asked for): try again in 7 s" in one_line_error(
        capsys, folder, "me/en-de", "--revision", "v2"
    )


def test_too_many_requests_for_a_while(hub, folder):
    """The client waits as long as it is told to."""
    hub.fail("POST", "/preupload/", 429, times=2, retry_after="7")
    push(folder, "me/en-de")
    assert hub.waits == [8.0, 8.0]  # and one more
    assert "model.safetensors" in hub.files("me/en-de")


def test_a_connection_cut_in_an_upload_is_taken_up_again(hub, folder):
    hub.fail("PUT", "/storage/", times=1, cut=1000)
    push(folder, "me/en-de")
    assert len([request for request in hub.requests if request.startswith("PUT")]) >= 2
    assert hub.files("me/en-de")["model.safetensors"] == (folder / "model.safetensors").read_bytes()


def test_a_connection_that_stays_cut(hub, tmp_path, tiny_model, capsys):
    """What had arrived of it isn't sent twice, and nothing is to be seen of it until all is there."""
    tiny_model().save_pretrained(tmp_path / "model", max_shard_size="5KB")
    shards = sorted((tmp_path / "model").glob("*.safetensors"))
    unlucky = sha256(shards[-1].read_bytes())
    hub.fail("PUT", unlucky, cut=1000)
    error = one_line_error(capsys, tmp_path / "model", "me/en-de")
    assert "the connection to the Hub failed" in error
    assert "try again" in error
    assert set(hub.files("me/en-de")) == {".gitattributes"}
    hub.faults.clear()
    del hub.requests[:]
    assert main.main(["push", str(tmp_path / "model"), "me/en-de"]) == 0
    assert [request for request in hub.requests if request.startswith("PUT")] == [f"PUT /storage/{unlucky}"]
    for shard in shards:
        assert hub.files("me/en-de")[shard.name] == shard.read_bytes()


def test_a_hub_that_is_not_there(hub, folder, capsys):
    hub.__exit__()
    assert "the connection to the Hub failed" in one_line_error(capsys, folder, "me/en-de")


def test_offline_mode(folder, capsys):
    assert "unset HF_HUB_OFFLINE" in one_line_error(capsys, folder, "me/en-de")


def test_a_fault_of_the_hub(hub, folder, capsys):
    hub.fail("POST", "/repos/create", 500)
    assert "the Hub has a fault (500: as was asked for): try again later" in one_line_error(capsys, folder, "en-de")


def test_an_answer_that_makes_no_sense(hub, folder, capsys):
    """A proxy's page in the place of the Hub's answer."""
    hub.fail("POST", "/repos/create", 200, body="<html>log in first</html>")
    assert "the Hub's answer can't be read" in one_line_error(capsys, folder, "en-de")


def test_a_length_penalty_that_only_this_package_knows_is_named(hub, folder, caplog):
    (folder / "generation_config.json").write_text('{"length_penalty_type": "paper"}')
    push(folder, "me/en-de")
    assert "length_penalty_type=paper: without this package" in caplog.text
