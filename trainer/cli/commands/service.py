"""Commands about a coordinator: `lipt doctor`, `strategies`, `token` and `dashboard`."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from typer import Argument, Context, Exit, Option, Typer

from lipt.common.access import Role
from lipt.common.terminal import print_line
from lipt.trainer.cli import options as shared
from lipt.trainer.cli.display.output import print_json, print_result
from lipt.trainer.formatting import table_lines

if TYPE_CHECKING:
    from lipt.trainer.views import StrategyView, TokenView


@shared.grouped
def doctor(*, json: shared.Json = False, coordinator: shared.Coordinator) -> None:
    """Examine this installation, and whether the coordinator can be used from here.

    The status is 1 when something is broken; every complaint has its remedy.
    """
    from lipt.trainer.cli.doctor import installed_versions, local_checks, remote_checks

    versions = installed_versions()
    checks = []
    # Known checks are printed before the next ones are made.
    for step in (local_checks(versions), remote_checks(coordinator, versions)):
        for check in step:
            checks.append(check)
            if not json:
                print_line(str(check))
    healthy = all(check.ok is not False for check in checks)
    if json:
        found = {"coordinator": coordinator.address, "versions": versions, "checks": checks}
        print_json({"healthy": healthy, **found})
    if not healthy:
        raise Exit(1)


# Entry points of this group name a function that gives a `ListStrategiesResponse`.
STRATEGIES_GROUP = "lipt.strategies"


@shared.grouped
def list_strategies(
    context: Context, *, json: shared.Json = False, coordinator: shared.Coordinator
) -> None:
    """List the selection strategies: papers, needs, costs and options.

    Strategies of a named coordinator, else of this installation.
    """
    if coordinator.is_named(context):
        with coordinator.connect() as client:
            strategies = client.strategies()
    else:
        strategies = _installed()
    lines = (line for strategy in strategies for line in _strategy_lines(strategy))
    print_result(strategies, lines, as_json=json)


def _installed() -> list[StrategyView]:
    from lipt.trainer.views import StrategyView, view_of

    print_line(
        "strategies of this installation; --coordinator HOST:PORT lists a coordinator's", err=True
    )
    answers: list[Any] = [entry.load()() for entry in entry_points(group=STRATEGIES_GROUP)]
    return [view_of(StrategyView, found) for answer in answers for found in answer.strategies]


def _strategy_lines(strategy: StrategyView) -> list[str]:
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


token_app = Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Give out tokens, which let others call a coordinator; list and end them.",
)


@token_app.command()
@shared.grouped
def create(
    *,
    role: Role = Option(..., help="Role of its holder."),
    name: str = Option("", help="Name in lists and logs."),
    days: float = Option(0.0, min=0.0, help="How long it is valid; 0 until it is revoked."),
    scores: bool = Option(False, "--scores", help="A worker's: it may score examples."),
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Give out a token, which is printed now and never again; put it into a file of its holder."""
    with coordinator.connect() as client:
        given = client.create_token(role, name=name, days=days, scores=scores)
    print_result({**vars(given.token), "secret": given.secret}, [given.secret], as_json=json)


@token_app.command("list")
@shared.grouped
def list_tokens(*, json: shared.Json = False, coordinator: shared.Coordinator) -> None:
    """List all tokens, including revoked and expired ones."""
    with coordinator.connect() as client:
        tokens = client.tokens()
    now = datetime.now(UTC)
    rows = []
    for one in tokens:
        state = token_state(one, now)
        role = f"{one.role}, scores" if one.scores else one.role
        rows.append((one.token_id, one.name, role, state, _day(one.created_at), one.created_by))
    header = ("id", "name", "role", "state", "created", "by")
    print_result(tokens, table_lines(header, rows), as_json=json)


@token_app.command()
@shared.grouped
def revoke(
    *,
    token_id: str = Argument(..., metavar="ID", help="As lipt token list has it."),
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Revoke a token: its calls are refused from now on."""
    with coordinator.connect() as client:
        token = client.revoke_token(token_id)
    print_result(token, [f"{token.token_id} ({token.name}) is revoked"], as_json=json)


def token_state(token: TokenView, now: datetime) -> str:
    if token.revoked_at is not None:
        return f"revoked {_day(token.revoked_at)}"
    if token.expires_at is None:
        return "valid"
    held = "expired" if now >= token.expires_at else "valid until"
    return f"{held} {_day(token.expires_at)}"


def _day(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d}" if moment else "-"


@shared.grouped
def dashboard(
    *,
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Print a link to the page to watch; it signs one browser in as you, within a minute."""
    with coordinator.connect() as client:
        link = client.open_page()
        called = client.address
    print_result(link, [link.url], as_json=json)
    if hint := tunnel_hint(link.url, called):
        print_line(hint, err=True)


def tunnel_hint(url: str, called: str) -> str:
    """How to reach a page on the loopback of another machine, the one that was called."""
    from lipt.common.access.tls import is_loopback, split_address

    page, (head, _) = urlsplit(url), split_address(called)
    host, port = page.hostname or "", page.port or 80
    if not is_loopback(host) or is_loopback(head):
        return ""
    tunnel = f"ssh -L {port}:{host}:{port} {head}"
    return f"The page listens on {head}'s loopback alone. First open a tunnel: {tunnel}"
