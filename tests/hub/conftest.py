"""A Hub for a test, and the client of this process told to use it."""

from types import SimpleNamespace

import pytest
from huggingface_hub import constants, hf_api
from huggingface_hub.utils import _http, close_session
from transformers.utils import hub as transformers_hub

from tests.hub.server import WRITER, Hub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Logged in as `me`; `hub.waits` are the seconds that the client said it would wait, and didn't."""
    with Hub() as hub:
        hub.waits = []
        # What HF_ENDPOINT, HF_HUB_OFFLINE, HF_HUB_DISABLE_XET and HF_HOME would have set before the import.
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        for name in ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH", "HF_STORED_TOKENS_PATH"):
            monkeypatch.setattr(constants, name, str(tmp_path / "hf" / name))
        monkeypatch.setattr(hf_api.api, "endpoint", hub.url)
        monkeypatch.setattr(transformers_hub, "_hf_api", None)
        monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=hub.waits.append))
        monkeypatch.setenv("HF_TOKEN", WRITER)
        close_session()
        yield hub
        close_session()
