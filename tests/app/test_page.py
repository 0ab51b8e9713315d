"""The page is built of local parts, and its handlers turn every error into a line."""

import json
import logging
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from command import fails

from scalespaces.app import _page as page
from scalespaces.cli import _app as app
from scalespaces.theory._kernels import KERNELS


def guarded(error: Exception | None = None, *cleared: str) -> tuple[dict, list[str]]:
    """What a handler returns, which may raise, and the passing messages."""
    said: list[str] = []

    def handler(value):
        if error is not None:
            raise error
        return {"out": value}

    gradio = SimpleNamespace(Warning=said.append)  # the part of it that a handler needs
    return page._guarded(gradio, "status", *cleared)(handler)(1), said


@pytest.mark.parametrize("kind", [ValueError, OSError, ImportError])
def test_an_expected_error_is_a_line(kind, caplog):
    error = kind("no <b> here")
    error.add_note("downscaled by 2")
    found, said = guarded(error)
    assert list(found) == ["status"]  # nothing else on the page changes ...
    assert guarded(error, "levels")[0] == {"levels": None} | found  # ... except what would show something older
    assert 'role="alert">no &lt;b&gt; here downscaled by 2<' in found["status"]
    assert (said, caplog.records) == (["no &lt;b&gt; here downscaled by 2"], [])


def test_an_unexpected_error_is_logged_and_a_line_and_success_clears_it(caplog):
    found, _ = guarded(ZeroDivisionError("by <0>"))
    assert "ZeroDivisionError: by &lt;0&gt;" in found["status"]
    assert "Traceback" not in found["status"]
    assert caplog.records[0].levelno == logging.ERROR
    assert caplog.records[0].exc_info is not None
    assert guarded() == ({"status": "", "out": 1}, [])


@pytest.mark.extra("gradio")
def test_the_page_is_private_and_asks_nobody(saved):
    """In a process of its own, because gradio leaves event loops open."""
    script = """
import json, sys
from scalespaces.app._images import first_picture
from scalespaces.app._page import build
from scalespaces.app._predictions import load_network
blocks = build(loaded=load_network(sys.argv[1]))
(explore,) = [handler.fn for handler in blocks.fns.values() if handler.name == "explore"]
found = explore(first_picture(), "discrete_gaussian", "2", "1/4", 4, 0, "pyramid", 2, "cascade")
print(json.dumps([blocks.analytics_enabled, blocks.get_config_file(), list(found.values())], default=str))
"""
    done = subprocess.run([sys.executable, "-c", script, saved("s_cnn")], capture_output=True, text=True, check=True)
    analytics, config, (status, levels, cost) = json.loads(done.stdout)
    assert analytics is False
    assert {dependency["api_visibility"] for dependency in config["dependencies"]} == {"private"}
    values = {c["props"].get("elem_id"): c["props"].get("value") for c in config["components"]}
    assert values["side"] == 28
    assert "s_cnn.safetensors" in values["facts"]
    kernels = next(c["props"] for c in config["components"] if c["props"].get("label") == "Kernel")
    assert {value for _, value in kernels["choices"]} == set(KERNELS)
    assert (status, levels[:4], cost[:3]) == ("", "<div", "<dl")


def test_a_port_that_is_no_number_or_taken_and_the_next_free_one(capsys, monkeypatch):
    for port in ("0", "-1", "65536", "x", "1.5"):
        assert "expected a whole number from 1 to 65535" in fails(capsys, "app", f"--port={port}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        message = fails(capsys, "app", "--no-browser", "--port", str(number))
    assert f"cannot serve at 127.0.0.1, port {number}: " in message
    assert "choose another --port" in message
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(app, "FIRST_PORT", taken.getsockname()[1])
        assert app._free_port("127.0.0.1", None) > taken.getsockname()[1]
        monkeypatch.setattr(app, "PORTS", 1)
        with pytest.raises(ValueError, match=r"any port from .* choose another"):
            app._free_port("127.0.0.1", None)


def test_what_is_missing_ends_the_command_at_once(capsys, tmp_path, monkeypatch):
    (tmp_path / "a.png").write_text("words")
    assert "'a.png' is not an image" in fails(capsys, "app", "--no-browser", "--image", str(tmp_path / "a.png"))
    for name, message in (("a.png", "a.png' is not a safetensors file"), ("none", "does not exist")):
        assert message in fails(capsys, "app", "--no-browser", "--model", str(tmp_path / name))
    assert "cannot serve at 203.0.113.1" in fails(capsys, "app", "--no-browser", "--host", "203.0.113.1")
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert "pip install 'scalespaces[app]'" in fails(capsys, "app", "--no-browser")
