"""`lipt dashboard`: a link to the coordinator's page, which signs a browser in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from lipt.trainer.cli.arguments.groups import grouped
from lipt.trainer.cli.arguments.options import Coordinator, Json
from lipt.trainer.cli.display.output import print_result

if TYPE_CHECKING:
    from lipt.trainer.views import PageLinkView


@grouped
def dashboard(
    *,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open it in this machine's browser as well.")
    ] = False,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Print a link to the page to watch; it signs one browser in as you, within a minute."""
    from lipt.common.text import say

    with coordinator.connect() as client:
        link = client.access.open_page()
        called = client.address
    print_result(link, [link.url], as_json=json)
    for line in hints(link, called):
        say(line, err=True)
    if open_browser:
        _open(link.url)


def hints(link: PageLinkView, called: str) -> list[str]:
    """What to do where the page listens on another machine's loopback.

    Args:
        link: to the page.
        called: the coordinator's address, as it was called.
    """
    from lipt.common.network.tls import is_loopback, split_address

    place = urlsplit(link.url)
    host, port = place.hostname or "", place.port or 80
    called_host, _ = split_address(called)
    if not is_loopback(host) or is_loopback(called_host):
        return []
    tunnel = f"ssh -L {port}:{host}:{port} {called_host}"
    return [
        f"The page listens on {called_host}'s loopback alone. First have a tunnel there: {tunnel}"
    ]


def _open(url: str) -> None:
    # What a coordinator names is opened by a browser, and by nothing else of this machine's.
    from lipt.common.errors import ConfigError

    if urlsplit(url).scheme not in {"http", "https"}:
        raise ConfigError(f"{url!r} is no address of a page. It is not opened.")
    import webbrowser

    webbrowser.open(url)
