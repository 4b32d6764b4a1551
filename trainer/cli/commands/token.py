"""`lipt token`: give out tokens, list them, and end them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from lipt.common.access.roles import Role
from lipt.trainer.cli.arguments.groups import grouped
from lipt.trainer.cli.arguments.options import Coordinator, Json
from lipt.trainer.cli.display.output import print_result
from lipt.trainer.writing.formatting import table_lines

if TYPE_CHECKING:
    from lipt.trainer.views import TokenView

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Give out tokens, which let others call a coordinator; list and end them.",
)


@app.command()
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
        given = client.access.create_token(role, name=name, days=days)
    shown = {**vars(given.token), "secret": given.secret}
    print_result(shown, [given.secret], as_json=json)


@app.command("list")
@grouped
def list_tokens(*, json: Json = False, coordinator: Coordinator) -> None:
    """List the tokens that were given out, those that have ended included."""
    with coordinator.connect() as client:
        tokens = client.access.tokens()
    now = datetime.now(UTC)
    header = ("id", "name", "role", "state", "created", "by")
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
    print_result(tokens, table_lines(header, rows), as_json=json)


@app.command()
@grouped
def revoke(
    *,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As lipt token list has it.")],
    json: Json = False,
    coordinator: Coordinator,
) -> None:
    """End a token: whoever shows it is refused from the next call on."""
    with coordinator.connect() as client:
        token = client.access.revoke_token(token_id)
    line = f"{token.token_id} ({token.name}) is revoked since {_moment(token.revoked_at)}"
    print_result(token, [line], as_json=json)


def token_state(token: TokenView, now: datetime) -> str:
    """Whether a token holds, and until when."""
    if token.revoked_at is not None:
        return f"revoked {_day(token.revoked_at)}"
    if token.expires_at is None:
        return "valid"
    if now >= token.expires_at:
        return f"expired {_day(token.expires_at)}"
    return f"valid until {_day(token.expires_at)}"


def _day(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d}" if moment else "-"


def _moment(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC" if moment else "-"
