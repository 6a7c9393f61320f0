"""The Hugging Face cache as huggingface_hub lays it out, and a local server in place of the hub."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from strategies.errors import SpecError
from strategies.hub_config import cached_folder, fetch_config, hub_cache, hub_request, is_hub_id
from strategies.load_model import resolve_model

GPT2 = {"model_type": "gpt2", "n_layer": 2}
TOKEN = "hf_secret"


class FakeHub(BaseHTTPRequestHandler):
    """Serves org/model, refuses org/gated, sends org/moved elsewhere; keeps what it was asked."""

    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("Authorization")))
        if self.path == "/org/model/resolve/main/config.json":
            self._answer(200, json.dumps(GPT2).encode())
        elif self.path == "/org/moved/resolve/main/config.json":
            self.send_response(307)
            self.send_header("Location", "/org/model/resolve/main/config.json")
            self.end_headers()
        elif self.path == "/org/page/resolve/main/config.json":
            self._answer(200, b"<html>sign in</html>")
        elif self.path == "/org/huge/resolve/main/config.json":
            self._answer(200, b" " * (2**22 + 1))
        else:
            self._answer(403 if "gated" in self.path else 404, b"no")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test output quiet."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[FakeHub]]:
    handler = type("Handler", (FakeHub,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    yield handler
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("model", ["org/model", "org/moved"])
def test_hub_id_is_fetched_when_nothing_local_has_it(hub: type[FakeHub], model: str) -> None:
    resolved = resolve_model(model)
    assert (resolved.name, resolved.config, resolved.folder) == (model, GPT2, None)


def test_hub_is_asked_once_a_process(hub: type[FakeHub]) -> None:
    for _ in range(3):
        with pytest.raises(SpecError):
            resolve_model("org/absent")
    assert len(hub.asked) == 1


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("org/absent", "127.0.0.1 does not have it .HTTP 404.; give a folder with its config.json"),
        ("org/gated", "127.0.0.1 refuses it .HTTP 403.; the token in HF_TOKEN has no access to it"),
        ("org/page", "org/page/config.json on the hub is not JSON"),
        ("org/huge", "sent more than 4194304 bytes"),
    ],
)
def test_hub_refusal_is_one_clear_line_without_the_token(hub: type[FakeHub], model: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        resolve_model(model)
    assert TOKEN not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gated_model_without_token_says_how_to_give_one(hub: type[FakeHub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(SpecError, match="set HF_TOKEN if it is gated or private"):
        resolve_model("org/gated")


def test_name_without_organisation_asks_no_network(hub: type[FakeHub]) -> None:
    with pytest.raises(SpecError, match="no preset, folder or cached model by that name"):
        resolve_model("lama-3.1-8b-typo")
    assert hub.asked == []


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_asks_no_network(hub: type[FakeHub], monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "true")
    with pytest.raises(SpecError, match="the network is switched off"):
        resolve_model("org/model")
    assert hub.asked == []


def test_token_is_not_sent_in_clear_text(hub: type[FakeHub]) -> None:
    resolve_model("org/model")
    assert all(authorization is None for _path, authorization in hub.asked)


def test_token_goes_to_https_hosts_and_never_along_a_redirect() -> None:
    request = hub_request("https://hub.example/org/model", TOKEN)
    assert request.unredirected_hdrs == {"Authorization": f"Bearer {TOKEN}"}
    assert "Authorization" not in request.headers
    assert not hub_request("https://hub.example/org/model", "").unredirected_hdrs


@pytest.mark.parametrize(
    ("endpoint", "failure"),
    [
        ("file:///etc", "not an http or https address"),
        ("nonsense", "not an http or https address"),
        ("http://127.0.0.1:1", "127.0.0.1 cannot be reached"),
    ],
)
def test_unusable_endpoint_is_told(endpoint: str, failure: str) -> None:
    fetched = fetch_config("org/model", {"HF_ENDPOINT": endpoint})
    assert fetched.text is None
    assert failure in fetched.failure


@pytest.mark.parametrize(
    "environment",
    [{"HF_HUB_CACHE": "/a/hub"}, {"HF_HOME": "/a"}, {"HF_HUB_CACHE": "/a/hub", "HF_HOME": "/b"}],
)
def test_hub_cache_matches_huggingface_hub(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    from huggingface_hub import constants

    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    with monkeypatch.context() as changed:
        for variable, value in environment.items():
            changed.setenv(variable, value)
        theirs = importlib.reload(constants).HF_HUB_CACHE
    importlib.reload(constants)
    assert str(hub_cache(environment)) == theirs == "/a/hub"


def test_hub_cache_without_variables_is_under_home() -> None:
    assert hub_cache({}) == Path("~/.cache/huggingface/hub").expanduser()
    assert hub_cache({"XDG_CACHE_HOME": "/x"}) == Path("/x/huggingface/hub")


def test_cached_folder_matches_huggingface_hub(tmp_path: Path) -> None:
    from huggingface_hub import try_to_load_from_cache

    repository = tmp_path / "models--org--model"
    (repository / "snapshots" / "abc").mkdir(parents=True)
    (repository / "refs").mkdir()
    environment = {"HF_HUB_CACHE": str(tmp_path)}
    assert cached_folder("org/model", environment) is None
    (repository / "refs" / "main").write_text("abc")
    assert cached_folder("org/model", environment) is None  # the snapshot has no config.json yet
    (repository / "snapshots" / "abc" / "config.json").write_text(json.dumps(GPT2))
    found = cached_folder("org/model", environment)
    assert found is not None
    assert try_to_load_from_cache("org/model", "config.json", cache_dir=tmp_path) == str(found / "config.json")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt2", True),
        ("org/model-1.5_b", True),
        ("a/b/c", False),
        ("../model", False),
        ("org/", False),
        ("org/..", False),
        ("", False),
        ("org/mo del", False),
        ("org/model?x=1", False),
    ],
)
def test_is_hub_id(name: str, expected: bool) -> None:
    assert is_hub_id(name) is expected
