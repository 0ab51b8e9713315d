"""Open a page in the browser. It shows the levels of your image and what they cost, how equivariant networks are on it,
and what a saved network predicts while you zoom. By default only this machine can reach the page; nothing is sent
anywhere. Press Ctrl-C to stop.

example, after scalespaces demo: scalespaces app --model out/demo/network.safetensors
"""

import argparse
import os
import signal
import socket
import sys
import threading
import webbrowser
from functools import partial
from typing import NoReturn

from scalespaces.cli import Parser, network_file, whole

FIRST_PORT, PORTS = 7860, 100
_port = partial(whole, "from 1 to 65535", range(1, 65536))


def add_arguments(parser: Parser) -> None:
    add = parser.add_argument
    about = "network to start with: a .safetensors file, or a folder that scalespaces train wrote"
    add("--model", metavar="FILE", type=network_file, help=about)
    about = "image to start with (default: the first PNG in the folder examples next to the network, or a photograph)"
    add("--image", metavar="FILE", help=about)
    add("--port", type=_port, metavar="N", help=f"port of the page (default: the first free one from {FIRST_PORT} on)")
    add("--host", default="127.0.0.1", metavar="NAME", help="address to listen on; 127.0.0.1 means this machine only")
    add("--no-browser", action="store_true", help="print the address, but do not open a browser")


def run(args: argparse.Namespace) -> None:
    from scalespaces.app._images import example_for, read_picture
    from scalespaces.app._page import build, launch
    from scalespaces.app._predictions import load_network

    port = _free_port(args.host, args.port)
    loaded = args.model and load_network(args.model)
    page = build(read_picture(args.image) if args.image else args.model and example_for(args.model), loaded)
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
            signal.signal(number, _interrupt)
    try:
        address = launch(page, args.host, port)
        print(f"scalespaces is at {address} (press Ctrl-C to stop)", flush=True)
        if args.host not in ("127.0.0.1", "localhost", "::1"):
            print("note: everyone who can reach this machine can use the page", file=sys.stderr, flush=True)
        if not args.no_browser:
            webbrowser.open(address)
        threading.Event().wait()
    except KeyboardInterrupt:
        print("\nended", flush=True)
    finally:
        page.close(verbose=False)
    os._exit(0)  # a handler may be computing still: taking the interpreter down below it aborts the process


def _interrupt(number: int, frame: object) -> NoReturn:
    """End as Ctrl-C does, so that uploads are deleted."""
    signal.signal(number, signal.SIG_IGN)  # a closing terminal may send it twice
    raise KeyboardInterrupt


def _free_port(host: str, port: int | None) -> int:
    """The port, if it is free, or the first free one."""
    ports, reason = range(FIRST_PORT, FIRST_PORT + PORTS) if port is None else [port], ""
    for candidate in ports:
        try:
            family = socket.getaddrinfo(host, candidate, type=socket.SOCK_STREAM)[0][0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
                probe.bind((host, candidate))
                return candidate
        except OSError as error:
            reason = error.strerror
    where = f"{host}, " + (f"port {port}" if port is not None else f"any port from {ports[0]} to {ports[-1]}")
    raise ValueError(f"cannot serve at {where}: {reason}; choose another --port, or omit --port and --host")
