"""The page answers to its own name and to itself; other sites that a browser visits get nothing of it."""

import asyncio
import http.client
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from explorer import serving

from scalespaces.app._guard import Guard


def answer(served: str, host: str | None, origin: str | None = None, kind: str = "http") -> object:
    """The status that a request gets, 200 if it is passed on; for a websocket, the code that it is closed with."""
    sent: list[dict[str, object]] = []

    async def page(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})

    async def send(message):
        sent.append(message)

    found = {b"host": host, b"origin": origin}
    headers = [(name, value.encode("latin-1")) for name, value in found.items() if value is not None]
    asyncio.run(Guard(page, served)({"type": kind, "headers": headers}, None, send))
    return sent[0].get("status", sent[0].get("code"))


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:9", "LOCALHOST", "[::1]:7860", "box.local:7860"])
@pytest.mark.parametrize("served", ["box.local", "Box.Local"])
def test_the_page_answers_to_its_names(served, host):
    assert answer(served, host) == 200
    assert answer(served, host, f"http://{host}") == 200
    assert answer(served, host, f"http://{host}", "websocket") == 200


NAMES = ("evil.example:7860", "127.0.0.1.evil.example", "0.0.0.0:7860", "box.local", "[::1", "", None, "\xe9")
SITES = ("http://evil.example", "null", "", "http://127.0.0.1:7861", "http://[::1")


@pytest.mark.parametrize(
    ("host", "origin"), [*((host, None) for host in NAMES), *(("127.0.0.1:7860", origin) for origin in SITES)]
)
def test_other_names_and_sites_are_refused(host, origin):
    assert answer("127.0.0.1", host, origin) == 403
    assert answer("127.0.0.1", host, origin, "websocket") == 1008


@pytest.mark.parametrize("served", ["0.0.0.0", "::", "[::]"])
def test_an_open_page_takes_any_name_but_no_other_site(served):
    assert answer(served, "box.example:7860", "http://box.example:7860") == 200
    assert answer(served, "box.example:7860", "http://evil.example:7860") == 403


def messages(page, *headers: tuple[bytes, bytes], path: str = "/") -> list[dict[str, Any]]:
    """All that is sent in answer to a request with these headers."""
    sent: list[dict[str, Any]] = []

    async def send(message):
        sent.append(message)

    asyncio.run(Guard(page, "127.0.0.1")({"type": "http", "headers": headers, "path": path}, None, send))
    return sent


async def fine(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"server", b"x")]})


async def broken(scope, receive, send):
    raise IsADirectoryError("no name")


HOST, OWN, EVIL = (
    (b"host", b"127.0.0.1:7860"),
    (b"origin", b"http://127.0.0.1:7860"),
    (b"origin", b"http://evil.example"),
)


@pytest.mark.parametrize("headers", [(HOST, OWN, EVIL), (HOST, EVIL, OWN), (HOST, HOST), ((b"host", b"evil"), HOST)])
def test_headers_that_contradict_each_other_are_refused(headers):
    assert messages(fine, *headers)[0]["status"] == 403
    assert messages(fine, HOST, OWN)[0]["status"] == 200


@pytest.mark.parametrize("headers", [(HOST, OWN), (HOST, EVIL)])
def test_no_site_may_frame_the_page(headers):
    found = dict(messages(fine, *headers)[0]["headers"])
    assert (found[b"x-frame-options"], found[b"content-security-policy"]) == (b"DENY", b"frame-ancestors 'none'")


def test_an_upload_that_cannot_be_read_is_the_senders_error():
    start, body = messages(broken, HOST, path="/gradio_api/upload")
    assert (start["status"], body["body"][:25]) == (400, b"the upload cannot be read")
    with pytest.raises(IsADirectoryError):
        messages(broken, HOST, path="/config")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and the host and port of its page; uploads go to ``tmp_path``."""
    with serving(GRADIO_TEMP_DIR=str(tmp_path)) as (process, address):
        yield process, urlsplit(address).netloc


def ask(address: str, path: str, headers: dict[str, str], body: bytes | None = None) -> tuple[int, str]:
    """The status and the beginning of an answer, to a POST if there is a body."""
    connection = http.client.HTTPConnection(address)
    connection.request("GET" if body is None else "POST", path, body, headers)
    response = connection.getresponse()
    text = response.readline() if "event-stream" in (response.getheader("content-type") or "") else response.read()
    connection.close()
    return response.status, text.decode()


def upload(address: str, name: str = "a.png", **headers: str) -> tuple[int, str]:
    """Post a small file."""
    body = b'--x\r\nContent-Disposition: form-data; name="files"; filename="%s"\r\n\r\nabc\r\n--x--\r\n' % name.encode()
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    return ask(address, "/gradio_api/upload", kind | headers, body)


@pytest.mark.slow
@pytest.mark.extra("gradio")
def test_the_server_serves_its_own_page_alone(server, tmp_path):
    _, address = server
    evil = {"Host": "evil.example:7991"}
    for path in ("/", "/config", "/gradio_api/info", "/gradio_api/queue/data?session_hash=s"):
        status, text = ask(address, path, evil)
        assert (status, "class" in text) == (403, False)
    assert upload(address, **evil)[0] == 403
    assert upload(address, Origin="http://evil.example")[0] == 403
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []

    own = {"Origin": f"http://{address}"}
    status, text = ask(address, "/config", {"Host": address.replace("127.0.0.1", "localhost")})
    assert status == 200
    assert upload(address, "", **own)[0] < 500
    status, uploaded = upload(address, **own)
    assert status == 200
    assert Path(json.loads(uploaded)[0]).read_bytes() == b"abc"
    load = next(d["id"] for d in json.loads(text)["dependencies"] if any(t[1] == "load" for t in d["targets"]))
    job = json.dumps({"data": [], "fn_index": load, "session_hash": "s"}).encode()
    kind = {"Content-Type": "application/json"}
    assert ask(address, "/gradio_api/queue/join", kind | {"Origin": "http://evil.example"}, job)[0] == 403
    status, text = ask(address, "/gradio_api/queue/join", kind | own, job)
    assert (status, "event_id" in text) == (200, True)
    status, text = ask(address, "/gradio_api/queue/data?session_hash=s", own)
    assert (status, text[:5]) == (200, "data:")


@pytest.mark.slow
@pytest.mark.extra("gradio")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_uploads_are_deleted_at_the_end(server, tmp_path, name):
    process, address = server
    if not hasattr(signal, name):
        pytest.skip(f"this system has no {name}")
    assert Path(json.loads(upload(address)[1])[0]).is_file()
    process.send_signal(getattr(signal, name))
    out, errors = process.communicate()
    assert (process.returncode, out.strip(), errors) == (0, "ended", "")
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
