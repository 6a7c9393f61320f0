"""The hub of Hugging Face where it answers, where it does not, and where it need not be asked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scaling.data import hub
from scaling.data.errors import DataError
from scaling.data.source import read_texts
from scaling.data.tokenizer import byte_tokenizer, load_tokenizer


@pytest.fixture
def hub_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody listens on it
    hub._silence.cache_clear()
    yield
    hub._silence.cache_clear()


@pytest.mark.usefixtures("hub_that_is_not_there")
def test_a_mistyped_tokenizer_is_refused_within_seconds_without_a_network() -> None:
    start = time.perf_counter()
    with pytest.raises(DataError) as caught:
        load_tokenizer("nobody/mistyped")
    # transformers alone asks again for about a minute.
    assert time.perf_counter() - start < 5
    message = str(caught.value)
    assert "'nobody/mistyped': it is no folder, not in the Hugging Face cache, and 127.0.0.1 cannot be" in message
    assert "; give a folder written by save_pretrained, a hub name (needs a network or the cache), or 'byt" in message
    assert "\n" not in message


@pytest.mark.usefixtures("hub_that_is_not_there")
def test_a_mistyped_dataset_is_refused_within_seconds_without_a_network() -> None:
    start = time.perf_counter()
    with pytest.raises(DataError, match=r"not in the cache, and 127\.0\.0\.1 cannot be reached .*check the spelling"):
        list(read_texts("nobody/mistyped"))
    assert time.perf_counter() - start < 10  # with the import of the library


def test_a_cached_tokenizer_opens_without_a_network(tmp_path: Path) -> None:
    # As huggingface_hub lays its cache out: refs/main names a folder under snapshots/.
    repository = tmp_path / "models--somebody--small"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("a" * 40)
    snapshot = repository / "snapshots" / ("a" * 40)
    byte_tokenizer().save_pretrained(str(snapshot))
    (snapshot / "config.json").write_text('{"model_type": "llama"}')  # transformers looks for it too
    code = (
        "from scaling.data.tokenizer import load_tokenizer as load; print(load('somebody/small')('hello')['input_ids'])"
    )
    # In a process of its own: the libraries read both variables when they are imported.
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(list(b"hello")), done.stderr


def test_a_path_that_is_no_folder_asks_no_network() -> None:
    with pytest.raises(DataError, match=r"tokenizer './nothing': there is no such folder; give a folder written by"):
        load_tokenizer("./nothing")


@pytest.mark.usefixtures("hub_that_is_not_there")
def test_the_switch_is_put_back_and_an_answer_of_any_kind_leaves_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    with hub.hub_or_cache() as silence:
        assert constants.HF_HUB_OFFLINE
        assert "cannot be reached" in silence
    assert not constants.HF_HUB_OFFLINE
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # answers HEAD with 501
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    hub._silence.cache_clear()
    with hub.hub_or_cache() as silence:
        assert (constants.HF_HUB_OFFLINE, silence) == (False, "")
    server.shutdown()
    server.server_close()
