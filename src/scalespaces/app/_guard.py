"""Who may use the page: browsers that show it, but no other site that they visit."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

_HERE = frozenset({"127.0.0.1", "localhost", "::1"})
_EVERYWHERE = ("0.0.0.0", "::")
_UNFRAMED = ((b"x-frame-options", b"DENY"), (b"content-security-policy", b"frame-ancestors 'none'"))


class Guard:
    """ASGI middleware that refuses requests to another host name, or from a page of another site.

    Without it, a site whose name resolves to this machine could read the page, and any site could post to it. Served at
    ``0.0.0.0`` or ``::``, the page answers to any name.
    """

    def __init__(self, app: Any, host: str) -> None:
        name = host.strip("[]").lower()
        self.app, self.names = app, None if name in _EVERYWHERE else _HERE | {name}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer 403, or pass the request on; answer 400 to an upload that fails, such as one without a name."""
        started = False

        async def unframed(message: Any) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started, message = True, message | {"headers": [*message.get("headers", ()), *_UNFRAMED]}
            await send(message)

        reason = self._refusal(scope["headers"]) if scope["type"] in ("http", "websocket") else None
        if reason is not None and scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif reason is not None:
            await _answer(unframed, 403, reason)
        else:
            try:
                await self.app(scope, receive, unframed)
            except Exception:
                if started or scope["type"] != "http" or not scope["path"].endswith("/upload"):
                    raise
                await _answer(unframed, 400, b"the upload cannot be read; give the file a name and try again")

    def _refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        hosts, origins = ([v.decode("latin-1").lower() for k, v in headers if k == n] for n in (b"host", b"origin"))
        host = hosts[0] if len(hosts) == 1 else ""
        try:
            name = urlsplit(f"//{host}").hostname
            sites = {urlsplit(origin).netloc for origin in origins} or {host}
        except ValueError:  # an unmatched bracket
            name, sites = None, set()
        if len(hosts) != 1 or (self.names is not None and name not in self.names):
            return b"this is not the page's name; open the address that the terminal shows, or give --host this name"
        return None if sites == {host} else b"pages of other sites may not use this one"


async def _answer(send: Any, status: int, reason: bytes) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(reason))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason})
