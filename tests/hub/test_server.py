"""The Hub that the other tests rely on: what the client asks of it beside pushing and loading."""

from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from tests.hub.server import OTHER, READER, WRITER


@pytest.fixture
def api(hub):
    """A client, and the public repository me/some with a few files."""
    api = HfApi()
    api.create_repo("some")
    files = {"a.txt": b"a", "b/c.txt": b"c" * 100, "b/d/e.safetensors": b"e" * 10}
    api.create_commit("me/some", [CommitOperationAdd(*item) for item in files.items()], commit_message="files")
    return api


def test_tokens_have_their_users(api):
    assert [api.whoami(token)["name"] for token in (WRITER, READER, OTHER)] == ["me", "me", "other"]
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        api.whoami("hf_nobody")


def test_trees_and_branches_are_listed(api):
    api.create_branch("me/some", branch="v2")
    assert [branch.name for branch in api.list_repo_refs("me/some").branches] == ["main", "v2"]
    assert {entry.path for entry in api.list_repo_tree("me/some")} == {".gitattributes", "a.txt", "b"}
    assert {entry.path for entry in api.list_repo_tree("me/some", "b", recursive=True)} == {
        "b/c.txt", "b/d/e.safetensors",
    }  # fmt: skip


def test_a_folder_comes_back_as_it_went(hub, api, tmp_path):
    snapshot_download("me/some", local_dir=tmp_path / "there")
    for name, content in hub.files("me/some").items():
        assert (tmp_path / "there" / name).read_bytes() == content


def test_files_are_removed(hub, api):
    api.create_commit("me/some", [CommitOperationDelete("a.txt"), CommitOperationDelete("b/d/")], commit_message="less")
    assert set(hub.files("me/some")) == {".gitattributes", "b/c.txt"}


def test_a_commit_on_what_has_moved_is_refused(hub, api):
    before = hub.repositories["model", "me/some"].branches["main"]
    hub.change("me/some", {"a.txt": b"another"})
    add = CommitOperationAdd("x.txt", b"x")
    with pytest.raises(HfHubHTTPError, match="412"):
        api.create_commit("me/some", [add], commit_message="late", parent_commit=before)


def test_what_is_not_there(api):
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("me/nothing")
    with pytest.raises(RevisionNotFoundError):
        api.model_info("me/some", revision="v9")
    with pytest.raises(RevisionNotFoundError):
        api.create_commit("me/some", [CommitOperationAdd("x", b"x")], commit_message="x", revision="v9")
    assert api.file_exists("me/some", "a.txt")
    assert not api.file_exists("me/some", "z.txt")


def test_the_storage_refuses_a_token(hub, api):
    """It is somebody else's machine: whoever has the address may read, and the Hub's token is not for it."""
    url = f"{hub.storage}/storage/{next(iter(hub.objects))}"
    with urlopen(url) as answer:
        assert answer.status == 200
    with pytest.raises(HTTPError, match="400"):
        urlopen(Request(url, headers={"Authorization": f"Bearer {WRITER}"}))
