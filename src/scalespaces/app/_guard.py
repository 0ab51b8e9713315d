"""Who may use the page: browsers that show it, but no other site that they visit."""

from typing import Any
from urllib.parse import urlsplit

_HERE = frozenset({"127.0.0.1", "localhost", "::1"})
_EVERYWHERE = ("0.0.0.0", "::")


class Guard:
    """ASGI middleware that refuses requests to another host name, or from a page of another site.

    Without it, a site whose name resolves to this machine could read the page, and any site could post to it. Served at
    ``0.0.0.0`` or ``::``, the page answers to any name.
    """

    def __init__(self, app: Any, host: str) -> None:
        name = host.strip("[]").lower()
        self.app, self.names = app, None if name in _EVERYWHERE else _HERE | {name}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer 403, or pass the request on."""
        reason = self._refusal(dict(scope["headers"])) if scope["type"] in ("http", "websocket") else None
        if reason is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(reason))]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": reason})

    def _refusal(self, headers: dict[bytes, bytes]) -> bytes | None:
        host, origin = headers.get(b"host", b"").decode("latin-1").lower(), headers.get(b"origin")
        try:
            name = urlsplit(f"//{host}").hostname
            site = host if origin is None else urlsplit(origin.decode("latin-1").lower()).netloc
        except ValueError:  # an unmatched bracket
            name = site = None
        if self.names is not None and name not in self.names:
            return b"this is not the page's name; open the address that the terminal shows, or give --host this name"
        return None if site == host else b"pages of other sites may not use this one"
