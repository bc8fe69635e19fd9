"""The Hugging Face Hub: what a repository of ours holds, and how it gets there."""

import json
import logging
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import wraps
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, OfflineModeIsEnabled

from modeling_vanilla.interop.int8 import METHOD

logger = logging.getLogger(__name__)

CONFIG, GENERATION, CARD, RESULTS = "config.json", "generation_config.json", "README.md", "results.json"
WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
# Fast tokenizers are in tokenizer.json; others have vocabularies of their own, and older ones special tokens apart.
TOKENIZER = (
    "tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "bpe.codes", "dict.txt",
    "*.spm", "*.model",
)  # fmt: skip
# Nothing else of a model's folder is shared: no pickle, optimizer, checkpoint, log, or recipe of somebody's machine.
MODEL_FILES = (
    CONFIG,
    GENERATION,
    CARD,
    *WEIGHTS,
    *TOKENIZER,
    "preprocessor_config.json",
)
ADAPTER = "adapter_config.json"  # beside a model, it changes what `from_pretrained` loads
PICTURE = re.compile(r"""!\[.*?\]\(\s*(<[^>\n]+>|[^\s)]+)[^)\n]*\)|<img\b[^>]*?\bsrc=["']([^"']+)""")
PICKLES = {".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".pyc"}
TOKEN = re.compile(rb"\bhf_(?:[A-Za-z0-9]{30,}|(?:oauth|jwt)_[\w.-]{30,})")
CODE = Path(__file__).parents[1]  # the model's modules


def push(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    repo_type: Literal["model", "space"] = "model",
    space_sdk: str | None = None,
    commit_message: str = "Upload model",
) -> CommitInfo:
    """
    Uploads a model in one commit: weights, config, generation config, tokenizer, card with its pictures, and the code
    that others load with `trust_remote_code=True`. What the repository had of another model, and would be loaded in its
    place (weights and a tokenizer under other names, an adapter), goes. A card that `vanilla train` or `vanilla card`
    wrote names the repository there, one that a person wrote goes up as it is.

    Args:
        folder: what `vanilla train` or `save_pretrained` wrote; for a Space, its files, which go up as they are.
        repo_id: `OWNER/NAME`, or `NAME` under the token's owner. Made where it isn't there.
        private: True makes a new repository private; None leaves that to the owner's settings.
        revision: a branch, made from `main` where it isn't there.
        token: by default that of `HF_TOKEN` or `hf auth login`.
        space_sdk: of a Space: gradio, docker or static.

    Returns:
        the commit; its `repo_url` is the repository's address.

    Raises:
        ValueError: for a folder without a model of ours, with int8 weights, or with an access token in a file; for an
            invalid name; without a token or the right to write; when the Hub can't be reached or refuses, with the
            remedy.

    Example:
        >>> push("my_model", "me/en-de", private=True).repo_url  # doctest: +SKIP
    """
    files = model_files(Path(folder)) if repo_type == "model" else all_files(Path(folder))
    for name, content in files.items():
        if not name.endswith(".safetensors") and TOKEN.search(_bytes(content)):
            raise ValueError(
                f"{Path(folder) / name}: holds an access token of the Hub: take it out, and make a new one"
            )
    repo_id = make_repository(repo_id, private=private, token=token, repo_type=repo_type, space_sdk=space_sdk)
    if repo_type == "model" and CARD in files:
        files[CARD] = card_for(repo_id, Path(folder))
    api = HfApi(token=token)
    with hub_errors(repo_id, token):
        if revision is not None and not revision.startswith("refs/"):
            api.create_branch(repo_id, branch=revision, repo_type=repo_type, exist_ok=True)
        info = api.repo_info(repo_id, repo_type=repo_type, revision=revision)
        there = [file.rfilename for file in getattr(info, "siblings", None) or ()]
        stale = [name for name in there if repo_type == "model" and is_loaded(name) and name not in files]
        operations: list[Any] = [CommitOperationDelete(name) for name in stale]
        operations += [CommitOperationAdd(name, content) for name, content in sorted(files.items())]
        return api.create_commit(
            repo_id, operations, commit_message=commit_message, repo_type=repo_type, revision=revision
        )


def make_repository(
    repo_id: str, *, private: bool | None = None, token: str | None = None, repo_type: str = "model",
    space_sdk: str | None = None,
) -> str:  # fmt: skip
    """
    Makes a repository where it isn't there; its whole name, `OWNER/NAME`.

    Raises:
        ValueError: as in `push`; also where it is there and public, but is to be private.
    """
    api = HfApi(token=token)
    with hub_errors(repo_id, token):
        made = api.create_repo(repo_id, private=private, repo_type=repo_type, space_sdk=space_sdk, exist_ok=True)
        if private and not api.repo_info(made.repo_id, repo_type=repo_type).private:
            raise ValueError(f"{made.repo_id}: is there already, and public: make it private in its settings")
    return made.repo_id


def model_files(folder: Path) -> dict[str, Path | bytes]:
    """
    What is shared of a model's folder: each file's name in the repository, and where it is, or what is in it.

    Raises:
        ValueError: for a folder that holds no whole model of ours.
    """
    remedy = "give a folder that `vanilla train` or `save_pretrained` wrote"
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder}: not a model, for it has no {CONFIG}: {remedy}")
    config = _read(folder / CONFIG)
    if config.get("model_type") != "vanilla":
        raise ValueError(f"{folder}: not one of our models, but model_type={config.get('model_type')!r}: {remedy}")
    if (folder / ADAPTER).is_file():
        raise ValueError(f"{folder}: holds an adapter beside a model: merge the two, and push what comes of it")
    files: dict[str, Path | bytes] = {
        path.name: path for pattern in MODEL_FILES for path in folder.glob(pattern) if path.is_file()
    }
    whole, _, index = WEIGHTS
    needed = {whole}
    if index in files and whole not in files:  # where both are, `from_pretrained` takes the whole one
        shards = _read(folder / index).get("weight_map")
        if not isinstance(shards, dict):
            raise ValueError(f"{folder / index}: has no weight_map: {remedy}")
        needed = {index, *map(str, shards.values())}
    if missing := sorted(needed - files.keys()):
        raise ValueError(f"{folder}: not a whole model: {missing[0]} is missing: {remedy}")
    files = {name: content for name, content in files.items() if name in needed or not is_weights(name)}
    for name in pictures(folder):
        files[name] = folder / name
    if _read(folder / GENERATION).get("length_penalty_type") == "paper":
        logger.warning("length_penalty_type=paper: without this package, generate() searches with n^alpha in its place")
    return {**files, **code_files(), CONFIG: with_code(config, f"{folder}: ")}


def card_for(repo_id: str, folder: Path) -> bytes:
    """The folder's card, which names the repository where it is the one that our writer makes of the run's results."""
    content = (folder / CARD).read_bytes()
    try:
        if facts := _read(folder / RESULTS):
            from modeling_vanilla.model_card.card import CURVE, card_text, is_made_of

            if is_made_of(facts, text := content.decode()):
                return card_text({**facts, "repo_id": repo_id}, f"]({CURVE})" in text).encode()
    except Exception:  # whatever the results of something else make a template raise; no jinja2
        logger.debug("%s: not made of the %s beside it", folder / CARD, RESULTS, exc_info=True)
    return content


def pictures(folder: Path) -> list[str]:
    """The pictures in the folder that its card shows, in Markdown or HTML."""
    if not (folder / CARD).is_file():
        return []
    text, root = (folder / CARD).read_text(encoding="utf-8", errors="replace"), folder.resolve()
    found: list[str] = []
    for markdown, html in PICTURE.findall(text):
        name = posixpath.normpath(unquote(markdown.strip("<>") or html))
        if re.match(r"[a-z][a-z+.-]+:|//", name):
            continue  # elsewhere
        if (root / name).is_file() and (root / name).resolve().is_relative_to(root):
            found.append(name)
        else:
            logger.warning("%s: shows %s, which isn't in the folder: it will be missing", folder / CARD, name)
    return found


def all_files(folder: Path) -> dict[str, Path | bytes]:
    """
    A Space's files: all but pickles, checkpoints, logs and hidden ones.

    Raises:
        ValueError: for a folder that holds none.
    """
    files: dict[str, Path | bytes] = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        aside = any(re.fullmatch(r"\..*|__pycache__|runs|checkpoint-\d+", part) for part in name.parts)
        if path.is_file() and not aside and path.suffix not in PICKLES:
            files[name.as_posix()] = path
    if not files:
        raise ValueError(f"{folder}: no such folder, or nothing in it to push")
    return files


def is_weights(name: str) -> bool:
    """Whether a repository's file is one that `from_pretrained` may take for the model's weights."""
    return re.fullmatch(r"(model|pytorch_model).*\.(safetensors|bin|index\.json)", name) is not None


def is_loaded(name: str) -> bool:
    """Whether `from_pretrained` may take a repository's file for a part of the model or its tokenizer."""
    return is_weights(name) or any(fnmatch(name, pattern) for pattern in ("adapter_*", *TOKENIZER))


def code_files() -> dict[str, Path | bytes]:
    """The model's modules, which import nothing else of this package."""
    return {path.name: path for path in CODE.glob("[a-z]*.py")}


def with_code(config: dict[str, Any], where: str = "") -> bytes:
    """
    A config.json that says in which module the class of each Auto class is.

    Raises:
        ValueError: for int8 weights, which only this package can read.
    """
    from modeling_vanilla import AUTO_CLASSES, VanillaConfig

    if isinstance(how := config.get("quantization_config"), dict) and how.get("quant_method") == METHOD:
        raise ValueError(
            f"{where}a model with int8 weights can't be shared, for without this package they are read wrong: push the "
            "model that it was made from, and let `vanilla convert MODEL FOLDER --to int8` make it where it is used"
        )
    classes = {"AutoConfig": VanillaConfig, **{auto.__name__: model for auto, model in AUTO_CLASSES.items()}}
    auto_map = {name: f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}" for name, cls in classes.items()}
    return (json.dumps({**config, "auto_map": auto_map}, indent=2, sort_keys=True) + "\n").encode()


def carry_code(*classes: Any) -> None:
    """Has `push_to_hub` of these classes upload the model's code too; folders saved elsewhere go without."""
    for cls in classes:
        cls._upload_modified_files = _with_code_written(cls._upload_modified_files)


def _with_code_written(upload: Any) -> Any:
    @wraps(upload)
    def write_code_and_upload(self: Any, working_dir: str, *args: Any, **kwargs: Any) -> Any:
        config = Path(working_dir) / CONFIG
        if config.is_file():  # an adapter has none
            config.write_bytes(with_code(_read(config)))
            for name, content in code_files().items():
                (Path(working_dir) / name).write_bytes(_bytes(content))
        return upload(self, working_dir, *args, **kwargs)

    return write_code_and_upload


def _bytes(content: Path | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _read(file: Path) -> dict[str, Any]:
    """A JSON file's object; nothing where there is no file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: can't be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: must hold a JSON object")
    return content


@contextmanager
def hub_errors(repo_id: str, token: str | None = None) -> Iterator[None]:
    """Turns what goes wrong between us and the Hub into a `ValueError` of one line with the remedy."""
    try:
        yield
    except HFValidationError as error:
        raise ValueError(f"{repo_id!r} can't be a repository's name: give NAME or OWNER/NAME: {error}") from error
    except OfflineModeIsEnabled as error:
        raise ValueError(f"{repo_id}: the Hub can't be reached in offline mode: unset HF_HUB_OFFLINE") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{repo_id}: the Hub's answer can't be read: try again later") from error
    except (HTTPError, RuntimeError) as error:
        cause = error.__cause__ if isinstance(error, RuntimeError) else error  # an upload's is wrapped
        raise ValueError(f"{repo_id}: {_what_to_do(cause or error, token or get_token())}") from error


def _what_to_do(error: BaseException, token: str | None) -> str:
    if not isinstance(error, HfHubHTTPError):
        why = " ".join(str(error).split()) or type(error).__name__
        return f"the connection to the Hub failed ({why}): try again; what is there already isn't sent twice"
    status = error.response.status_code
    said = f"{status}: {' '.join((error.server_message or error.response.reason_phrase).split())}"
    if status == 401 and token is None:
        return "not logged in: run `hf auth login`, set HF_TOKEN, or give a token"
    if status == 401:
        return f"the Hub doesn't accept this token ({said}): make a new one at https://huggingface.co/settings/tokens"
    if status == 403:
        return f"this token may not write there ({said}): take a token with the right to write, or a name of your own"
    if status == 429:
        wait = error.response.headers.get("retry-after")
        return f"too many requests ({said}): try again in {f'{wait} s' if wait else 'some minutes'}"
    if status >= 500:
        return f"the Hub has a fault ({said}): try again later"
    return f"the Hub refuses ({said})"


__all__ = ["carry_code", "make_repository", "push"]
