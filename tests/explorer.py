"""Run the explorer as its command does."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command on a free port, and the address of its page."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "scalespaces", "app", "--no-browser", "--port", port, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | environment, **pipes) as process:
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
            found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            assert found, f"no address in {line!r}"
            yield process, found[0]
        finally:
            process.kill()
