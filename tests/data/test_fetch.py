"""Downloads from a server on the loopback: whole, resumed, checked, or refused with a reason."""

import gzip
import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scalespaces.data import fetch
from scalespaces.data._fetch import REMOTES, Remote

DATA = bytes(range(256)) * 4000
PACKED = gzip.compress(DATA, mtime=0)


class Server(ThreadingHTTPServer):
    """Files in memory; may ignore ranges, break off after so many bytes, or claim that files are encoded."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/d/a.bin": DATA, "/d/b.h5.gz": PACKED}
        self.ranges, self.break_after, self.encoding = True, 0, ""
        self.requests: list[tuple[str, str | None]] = []
        self.sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/d"


class Handler(BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.requests.append((self.path, asked))
        assert self.headers["Accept-Encoding"] == "identity"
        body = self.server.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        resumed = asked and self.server.ranges
        start = int(str(asked).removeprefix("bytes=").removesuffix("-")) if resumed else 0
        self.send_response(200 if not resumed else 206 if start < len(body) else 416)
        if resumed:
            place = f"{start}-{len(body) - 1}" if start < len(body) else "*"
            self.send_header("Content-Range", f"bytes {place}/{len(body)}")
        if self.server.encoding:
            self.send_header("Content-Encoding", self.server.encoding)
        self.send_header("Content-Length", str(max(len(body) - start, 0)))
        self.end_headers()
        end = start + self.server.break_after if self.server.break_after else len(body)
        self.server.sent += len(body[start:end])  # before the client can see it
        self.wfile.write(body[start:end])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    md5 = {name: hashlib.md5(data).hexdigest() for name, data in (("a.bin", DATA), ("b.h5.gz", PACKED))}
    monkeypatch.setitem(REMOTES, "plain", Remote("", ("http://127.0.0.1:9/",), {"a.bin": md5["a.bin"]}))
    monkeypatch.setitem(REMOTES, "packed", Remote("", ("http://127.0.0.1:9/",), {"b.h5.gz": md5["b.h5.gz"]}, True))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_downloaded_once(server, tmp_path):
    for mirror, force in ((server.url, False), (server.url + "/", False), (server.url, True)):
        (path,) = fetch("plain", tmp_path / "new" / "folder", mirror=mirror, force=force)
        assert (path.read_bytes(), names(path.parent)) == (DATA, ["a.bin"])
        assert server.requests == [("/d/a.bin", None)]


@pytest.mark.parametrize("encoding", ["", "gzip"])  # which some servers call packed files
def test_packed_files_are_unpacked(server, tmp_path, encoding):
    server.encoding = encoding
    (path,) = fetch("packed", tmp_path, mirror=server.url)
    assert (path.name, path.read_bytes(), names(tmp_path)) == ("b.h5", DATA, ["b.h5"])
    for force in (False, True):
        fetch("packed", tmp_path, mirror=server.url, force=force)
        assert len(server.requests) == 1 + force
    path.rename(tmp_path / "b.h5.gz").write_bytes(PACKED)  # downloaded, and stopped before it was unpacked
    fetch("packed", tmp_path, mirror=server.url)
    assert (len(server.requests), names(tmp_path)) == (2, ["b.h5"])


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_resumes_where_it_stopped(server, tmp_path, ranges):
    server.ranges, server.break_after = ranges, 600_000
    with pytest.raises(OSError, match=r"cannot download a.bin; http://.*run it again to resume where it stopped"):
        fetch("plain", tmp_path, mirror=server.url)
    assert names(tmp_path) == ["a.bin.part"]
    part = (tmp_path / "a.bin.part").stat().st_size
    assert 0 < part <= 600_000
    server.break_after = 0
    (path,) = fetch("plain", tmp_path, mirror=server.url)
    assert (path.read_bytes(), server.requests[1]) == (DATA, ("/d/a.bin", f"bytes={part}-"))
    assert server.sent == 600_000 + (len(DATA) - part if ranges else len(DATA))
    assert names(tmp_path) == ["a.bin"]
    path.rename(tmp_path / "a.bin.part")  # whole, and stopped before it was named
    assert fetch("plain", tmp_path, mirror=server.url) == [path]
    assert server.sent == 600_000 + (len(DATA) - part if ranges else 2 * len(DATA))


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    server.files["/d/a.bin"] = DATA[:-1] + b"!"
    with pytest.raises(OSError, match=r"its checksum is wrong"):
        fetch("plain", tmp_path, mirror=server.url)
    assert names(tmp_path) == []
    server.files["/d/a.bin"] = DATA
    (tmp_path / "a.bin.part").write_bytes(b"what somebody else began")
    with pytest.raises(OSError, match=r"its checksum is wrong"):
        fetch("plain", tmp_path, mirror=server.url)
    assert fetch("plain", tmp_path, mirror=server.url)[0].read_bytes() == DATA


def test_what_is_there_is_not_overwritten(server, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"a.bin' exists, with another checksum"):
        fetch("plain", tmp_path, mirror=server.url)
    with pytest.raises(OSError, match=r"404"):
        fetch("plain", tmp_path, mirror=server.url + "/elsewhere", force=True)
    assert (tmp_path / "a.bin").read_bytes() == b"mine"
    assert fetch("plain", tmp_path, mirror=server.url, force=True)[0].read_bytes() == DATA


def test_servers_that_do_not_have_it(server, tmp_path, monkeypatch):
    with pytest.raises(OSError, match=r"a.bin: the server says 404 Not Found"):
        fetch("plain", tmp_path, mirror=server.url + "/elsewhere")
    with pytest.raises(OSError, match=r"cannot download a.bin; http://127.0.0.1:9/a.bin: .*refused"):
        fetch("plain", tmp_path)
    assert names(tmp_path) == []
    places = (f"{server.url}/elsewhere/", f"{server.url}/")
    monkeypatch.setitem(REMOTES, "plain", Remote("", places, REMOTES["plain"].files))
    assert fetch("plain", tmp_path)[0].read_bytes() == DATA, "the second place is tried"


def test_servers_that_send_without_end(server, tmp_path, monkeypatch):
    monkeypatch.setitem(REMOTES, "plain", Remote("", (), REMOTES["plain"].files, most=len(DATA)))
    assert fetch("plain", tmp_path / "fits", mirror=server.url)[0].read_bytes() == DATA
    server.files["/d/a.bin"] = DATA * 20
    with pytest.raises(OSError, match=r"it has more than 1,024,000 bytes, so the download was deleted"):
        fetch("plain", tmp_path / "new", mirror=server.url)
    assert names(tmp_path / "new") == []


def test_links_and_pipes_are_not_written_to(server, tmp_path):
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / "a.bin.part").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=r"a.bin.part' is a link"):
        fetch("plain", tmp_path, mirror=server.url)
    assert (tmp_path / "mine").read_bytes() == b"mine"
    (tmp_path / "a.bin.part").unlink()
    for name in ("a.bin.part", "a.bin"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(ValueError, match=rf"{name}' is not a regular file"):
            fetch("plain", tmp_path, mirror=server.url)
