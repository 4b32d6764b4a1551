"""Commands about a coordinator: `lipt doctor`, `strategies`, `top`, `token` and `dashboard`."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from lipt.common.access.roles import Role
from lipt.common.terminal import say
from lipt.trainer.cli.display.output import print_json, print_result
from lipt.trainer.cli.options import Coordinator, Json, grouped
from lipt.trainer.writing.formatting import table_lines

if TYPE_CHECKING:
    from lipt.trainer.views import PageLinkView, StrategyView, TokenView


@grouped
def examine(*, json: Json = False, coordinator: Coordinator) -> None:
    """Examine this installation, and whether the coordinator can be used from here.

    The status is 1 when something is broken; every complaint has its remedy.
    """
    from lipt.trainer.cli.doctor import check_line, installed_versions, local_checks, remote_checks

    versions = installed_versions()
    checks = []
    # Known checks are printed before the next ones are made.
    for step in (local_checks(versions), remote_checks(coordinator, versions)):
        for check in step:
            checks.append(check)
            if not json:
                say(check_line(check))
    healthy = all(check.ok is not False for check in checks)
    if json:
        found = {"coordinator": coordinator.address, "versions": versions, "checks": checks}
        print_json({"healthy": healthy, **found})
    if not healthy:
        raise typer.Exit(1)


# Entry points of this group name a function that gives a `ListStrategiesResponse`.
STRATEGIES_GROUP = "lipt.strategies"


@grouped
def list_strategies(
    context: typer.Context, *, json: Json = False, coordinator: Coordinator
) -> None:
    """List the selection strategies: papers, needs, costs and options.

    They are those of this installation, unless a coordinator is named, which is asked for its own.
    """
    if coordinator.is_named(context):
        with coordinator.connect() as client:
            strategies = client.strategies()
    else:
        strategies = _installed()
    lines = (line for strategy in strategies for line in strategy_lines(strategy))
    print_result(strategies, lines, as_json=json)


def _installed() -> list[StrategyView]:
    from lipt.trainer.views import StrategyView, view_of

    say("strategies of this installation; --coordinator HOST:PORT lists a coordinator's", err=True)
    return [view_of(StrategyView, strategy) for strategy in installed_strategies()]


def installed_strategies() -> list[Any]:
    """The strategies that are installed here, as messages."""
    answers = (entry.load()() for entry in entry_points(group=STRATEGIES_GROUP))
    return [strategy for answer in answers for strategy in answer.strategies]


def strategy_lines(strategy: StrategyView) -> list[str]:
    """A strategy as a few lines of text."""
    told = [
        f"needs {' and '.join(strategy.needs)}" if strategy.needs else "",
        "with weights" if strategy.returns_weights else "without weights",
        "balanced per class" if strategy.balanced_by_default else "not balanced per class",
        f"cost {strategy.cost}" if strategy.cost else "",
        "" if strategy.default_proxy in ("", "soup") else f"proxy {strategy.default_proxy}",
        "works with --labels none" if strategy.works_without_labels else "",
        "needs classes: not for labels or numbers" if strategy.needs_classes else "",
    ]
    more = [", ".join(filter(None, told)), strategy.paper]
    for option in strategy.options:
        text = f"--option {option.name}={option.default_value}"
        if option.allowed_values:
            choice = "one of " if len(option.allowed_values) > 1 else ""
            text += f" ({choice}{', '.join(option.allowed_values)})"
        more.append(f"{text}: {option.help}" if option.help else text)
    more += [f"--preset {preset.name}: {preset.summary}" for preset in strategy.presets]
    return [f"{strategy.name}: {strategy.summary}", *(f"    {line}" for line in more if line)]


_ONCE_WIDTH = 160


@grouped
def top(
    *,
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, max=60.0, help="Seconds between two looks.")
    ] = 1.0,
    num_runs: Annotated[
        int, typer.Option("--runs", min=1, max=200, help="So many of the newest runs.")
    ] = 20,
    once: Annotated[bool, typer.Option("--once", help="Print how it stands now, and end.")] = False,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Watch the coordinator until Ctrl-C: its runs, their learners, the workers and the queue.

    Where standard output is no terminal, it is printed once. With --json an object is printed for
    every change, without end; with --once as well, a single one.
    """
    from functools import partial

    with coordinator.connect() as client:
        views = partial(client.watch_service, interval_seconds=interval, num_runs=num_runs)
        if json:
            for view in views():
                print_json(view)
                if once:
                    return
        else:
            from lipt.trainer.cli.display.follow import render_service, watch_service
            from lipt.trainer.cli.display.screen import Screen

            if sys.stdout.isatty() and not once:
                watch_service(client.address, lambda on_pause: views(on_pause=on_pause))
            else:
                view = next(iter(views()))
                room = max(len(view.runs), len(view.workers), len(view.computations), num_runs)
                screen = Screen() if sys.stdout.isatty() else Screen(width=_ONCE_WIDTH)
                screen.print(render_service(client.address, view, room))


token_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Give out tokens, which let others call a coordinator; list and end them.",
)


@token_app.command()
@grouped
def create(
    *,
    role: Annotated[Role, typer.Option("--role", help="What its holder may do.")],
    name: Annotated[str, typer.Option("--name", help="What it is listed under.")] = "",
    days: Annotated[
        float,
        typer.Option("--days", min=0.0, help="How long it holds; 0 until it is revoked."),
    ] = 0.0,
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """Give out a token, which is printed now and never again; put it into a file of its holder."""
    with coordinator.connect() as client:
        given = client.create_token(role, name=name, days=days)
    shown = {**vars(given.token), "secret": given.secret}
    print_result(shown, [given.secret], as_json=json)


@token_app.command("list")
@grouped
def list_tokens(*, json: Json = False, coordinator: Coordinator) -> None:
    """List the tokens that were given out, those that have ended included."""
    with coordinator.connect() as client:
        tokens = client.tokens()
    now = datetime.now(UTC)
    rows = [
        (
            token.token_id,
            token.name,
            token.role,
            token_state(token, now),
            _day(token.created_at),
            token.created_by,
        )
        for token in tokens
    ]
    header = ("id", "name", "role", "state", "created", "by")
    print_result(tokens, table_lines(header, rows), as_json=json)


@token_app.command()
@grouped
def revoke(
    *,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As lipt token list has it.")],
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """End a token: whoever shows it is refused from the next call on."""
    with coordinator.connect() as client:
        token = client.revoke_token(token_id)
    line = f"{token.token_id} ({token.name}) is revoked"
    print_result(token, [line], as_json=json)


def token_state(token: TokenView, now: datetime) -> str:
    """Whether a token holds, and until when."""
    if token.revoked_at is not None:
        return f"revoked {_day(token.revoked_at)}"
    if token.expires_at is None:
        return "valid"
    held = "expired" if now >= token.expires_at else "valid until"
    return f"{held} {_day(token.expires_at)}"


def _day(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d}" if moment else "-"


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
    with coordinator.connect() as client:
        link = client.open_page()
        called = client.address
    print_result(link, [link.url], as_json=json)
    for line in hints(link, called):
        say(line, err=True)
    if open_browser:
        _open(link.url)


def hints(link: PageLinkView, called: str) -> list[str]:
    """What to do where the page listens on another machine's loopback."""
    from lipt.common.network.tls import is_loopback, split_address

    place = urlsplit(link.url)
    host, port = place.hostname or "", place.port or 80
    called_host, _ = split_address(called)
    if not is_loopback(host) or is_loopback(called_host):
        return []
    tunnel = f"ssh -L {port}:{host}:{port} {called_host}"
    return [f"The page listens on {called_host}'s loopback alone. First open a tunnel: {tunnel}"]


def _open(url: str) -> None:
    # What a coordinator names is opened by a browser, and by nothing else of this machine's.
    from lipt.common.errors import ConfigError

    if urlsplit(url).scheme not in {"http", "https"}:
        raise ConfigError(f"{url!r} is no address of a page. It is not opened.")
    import webbrowser

    webbrowser.open(url)
