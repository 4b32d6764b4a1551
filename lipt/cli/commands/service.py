"""Commands about a coordinator: `lipt doctor`, `strategies`, `token` and `dashboard`."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from textwrap import wrap
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from typer import Argument, BadParameter, Context, Exit, Option, Typer

from lipt.cli import options as shared
from lipt.cli.output import print_json, print_result
from lipt.common.access import Role
from lipt.common.terminal import CommandGroup, print_line
from lipt.common.text import did_you_mean, empty_classes
from lipt.trainer.formatting import table_lines

if TYPE_CHECKING:
    from lipt.core.catalogue import StrategyView
    from lipt.trainer.views import DatasetView, InfoView, TokenView, WorkerView


@shared.grouped
def doctor(context: Context, *, json: shared.Json = False, coordinator: shared.Coordinator) -> None:
    """Check this installation, and its connection to a coordinator.

    The status is 1 when something is broken; every complaint has its remedy. Work in one process
    needs no coordinator: where none is named, none needs to answer.
    """
    versions = installed_versions()
    checks = []
    # Known checks are printed before the next ones are made.
    is_named = coordinator.is_named(context)
    for step in (local_checks(versions), remote_checks(coordinator, versions, is_named=is_named)):
        for check in step:
            checks.append(check)
            if not json:
                print_line(str(check))
    healthy = all(check.ok is not False for check in checks)
    if json:
        details = {"coordinator": coordinator.address, "versions": versions, "checks": checks}
        print_json({"healthy": healthy, **details})
    if not healthy:
        raise Exit(1)


# One seed gives one soup only where these agree.
_RESULT_LIBRARIES = ("lipt", "torch", "torchvision")
_LIBRARIES = (*_RESULT_LIBRARIES, "grpcio", "protobuf", "numpy", "pyarrow", "safetensors")
# Those that an extra brings.
_EXTRAS = {"scikit-learn": "demo"}


@dataclass(frozen=True)
class Check:
    """One fact: fine (True), broken (False), or worth knowing (None), and what to do."""

    name: str
    ok: bool | None
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        mark = {True: "ok", False: "FAILED", None: "note"}[self.ok]
        return f"{mark:<7}{self.name}: {self.detail}. {self.remedy}".rstrip()


def installed_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for library in (*_LIBRARIES, *_EXTRAS):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[library] = importlib.metadata.version(library)
    return versions


def local_checks(versions: Mapping[str, str]) -> Iterator[Check]:
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield Check("installed", True, listed)
    for library, extra in _EXTRAS.items():
        if library not in versions:
            detail = f"{library} is not, and only lipt[{extra}] needs it"
            yield Check("installed", None, detail, f"pip install '.[{extra}]'")
    yield _device_check()


def _device_check() -> Check:
    try:
        import torch
        import torchvision  # noqa: F401 - a torch that does not fit it breaks here
    except (ImportError, OSError, RuntimeError) as error:
        detail = f"torch or torchvision cannot be imported: {error}"
        remedy = "Install a pair that fits: pip install --force-reinstall torch torchvision"
        return Check("device", False, detail, remedy)
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return Check("device", True, ", ".join(names))
    return Check("device", True, f"cpu with {torch.get_num_threads()} threads")


def remote_checks(
    coordinator: shared.Coordinator, versions: Mapping[str, str], *, is_named: bool
) -> Iterator[Check]:
    from lipt.common.access.tls import split_address
    from lipt.common.errors import LiptError, UnreachableError
    from lipt.common.rpc.messages import PROTOCOL_MAJOR, PROTOCOL_MINOR

    split_address(coordinator.address)
    try:
        with coordinator.connect() as client:
            info = client.info()
            caller = client.who_am_i()
    except LiptError as error:
        if not is_named:
            # What answers at the default address may be another program's, or another user's.
            why = "none answers" if isinstance(error, UnreachableError) else "none is of use"
            detail = (
                f"none is named, and {why} at {coordinator.address}: connection, roles, data and "
                "workers were not looked at"
            )
            yield Check(
                "coordinator", None, detail, "Name one: lipt doctor --coordinator HOST:PORT"
            )
            return
        name = "connection" if isinstance(error, UnreachableError) else "coordinator"
        yield Check(name, False, str(error).rstrip("."))
        return
    yield Check("access", True, f"called as {caller.name}: {', '.join(caller.roles)}")
    tls = coordinator.tls()
    if tls is None:
        yield Check("tls", None, "not used: the connection is in the clear")
    elif soon := tls.expires_soon():
        yield Check("tls", None, soon.rstrip("."))
    ours = PROTOCOL_MAJOR, PROTOCOL_MINOR
    yield from coordinator_checks(info, protocol=ours, versions=versions)


def coordinator_checks(
    info: InfoView, *, protocol: tuple[int, int], versions: Mapping[str, str]
) -> Iterator[Check]:
    theirs = info.protocol
    detail = "the coordinator speaks {}.{}, this side {}.{}".format(*theirs, *protocol)
    older = "the coordinator" if theirs < protocol else "this side"
    remedy = "" if theirs[0] == protocol[0] else f"Update {older}: pip install --upgrade lipt"
    yield Check("protocol", not remedy, detail, remedy)
    yield Check("coordinator", True, f"computes on {info.device or 'an unnamed device'}")
    yield from _version_checks(info, versions)
    yield _dataset_check(info.dataset)
    if not info.workers:
        detail = "none has joined, so learners wait"
        yield Check("workers", None, detail, "Start one: lipt-worker --coordinator HOST:PORT")
    yield from map(_worker_check, info.workers)


def _version_checks(info: InfoView, versions: Mapping[str, str]) -> Iterator[Check]:
    peers = {
        "this side": versions,
        "the coordinator": info.versions,
        **{f"worker {worker.name}": worker.versions for worker in info.workers},
    }
    for library in _RESULT_LIBRARIES:
        installed = {who: known[library] for who, known in peers.items() if library in known}
        if len(set(installed.values())) > 1:
            listed = ", ".join(f"{who} {version}" for who, version in installed.items())
            remedy = "One seed gives one subset only with equal versions."
            yield Check("versions", None, f"{library} differs: {listed}", remedy)


def _dataset_check(dataset: DatasetView | None) -> Check:
    if dataset is None or not dataset.num_examples:
        remedy = "Start lipt-coordinator with --data."
        return Check("data", False, "the coordinator has none", remedy)
    detail = (
        f"{dataset.source}, {dataset.num_examples} examples of {dataset.targets}, "
        f"{dataset.inputs}, fingerprint {dataset.fingerprint}"
    )
    empty = empty_classes(dataset.class_names, dataset.class_counts)
    if empty and dataset.other_target is None:
        return Check("data", None, f"{detail}; {empty}", "Models get an output for each of these.")
    return Check("data", True, detail)


def _worker_check(worker: WorkerView) -> Check:
    name = f"worker {worker.name}"
    busy = f"at work on {worker.assignment}" if worker.assignment else "idle"
    detail = f"{worker.device}, {busy}, heard {worker.seconds_since_last_call:.0f} s ago"
    if worker.certificate_expires_at is not None:
        detail += f", certificate until {worker.certificate_expires_at:%Y-%m-%d}"
    if worker.seconds_since_last_call > 60:  # they are heard every few seconds
        return Check(name, None, detail, "See its log; it may be gone.")
    if worker.idle_reason:
        remedy = "Start it with that flag where its machine may run that code, or start another."
        return Check(name, None, f"{detail}; it {worker.idle_reason}", remedy)
    return Check(name, True, detail)


@shared.grouped
def list_strategies(
    context: Context,
    name: str | None = Argument(None, help="A strategy to describe.", show_default=False),
    *,
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """List the selection strategies, or describe one by name.

    Strategies of a named coordinator, else of this installation.
    """
    if coordinator.is_named(context):
        with coordinator.connect() as client:
            strategies = client.strategies()
    else:
        strategies = _installed()
    if name is None:
        print_result(strategies, overview_lines(strategies), as_json=json)
        return
    known = {strategy.name: strategy for strategy in strategies}
    if name not in known:
        raise BadParameter(
            f"there is no strategy {name!r}.{did_you_mean(name, known)} All are in: lipt strategies"
        )
    print_result(known[name], strategy_lines(known[name]), as_json=json)


def _installed() -> list[StrategyView]:
    from lipt.core.catalogue import describe

    print_line(
        "strategies of this installation; --coordinator HOST:PORT lists a coordinator's", err=True
    )
    return describe()


def group_of(strategy: StrategyView) -> str:
    """The heading of a strategy, by what it needs."""
    needs = set(strategy.needs)
    if strategy.default_proxy == "auto":
        return "The default"
    if needs <= {"nothing", "labels"}:
        return "Without a model"
    if "paired features" in needs:
        return "For image-text pairs"
    if needs & {"losses", "losses after a target", "features of a target", "words of a target"}:
        return "For a target, or by losses of theta*"
    if "learners" in needs:
        return "By the learners' training dynamics"
    if strategy.works_without_labels:
        return "By coverage of the data, also without labels"
    return "By gradients, with weights" if strategy.returns_weights else "By predictions"


def overview_lines(strategies: Sequence[StrategyView]) -> Iterator[str]:
    """A line for each strategy, by groups."""
    groups: dict[str, list[StrategyView]] = {}
    for strategy in strategies:
        groups.setdefault(group_of(strategy), []).append(strategy)
    width = max((len(strategy.name) for strategy in strategies), default=0)
    for heading, listed in groups.items():
        yield f"{heading}:"
        for strategy in listed:
            yield f"  {strategy.name:<{width}}  {strategy.summary}"
    yield "Options, presets, costs and paper of one: lipt strategies NAME"


def strategy_lines(strategy: StrategyView) -> list[str]:
    facts = [
        f"{strategy.name}: {strategy.summary}",
        f"  needs: {' and '.join(strategy.needs)}" if strategy.needs else "",
        f"  cost: {strategy.cost}" if strategy.cost else "",
        f"  weights: {'yes' if strategy.returns_weights else 'no'}",
        f"  equal shares of classes by default: {'yes' if strategy.balanced_by_default else 'no'}",
        f"  works with --labels none: {'yes' if strategy.works_without_labels else 'no'}",
        "  targets: classes alone" if strategy.target_kinds == ("class",) else "",
        f"  proxy: {strategy.default_proxy}" if strategy.default_proxy else "",
        f"  paper: {strategy.paper}" if strategy.paper else "",
    ]
    for option in strategy.options:
        text = f"  --option {option.name}={option.default_value}"
        if option.allowed_values:
            choice = "one of " if len(option.allowed_values) > 1 else ""
            text += f" ({choice}{', '.join(option.allowed_values)})"
        facts.append(f"{text}: {option.help}" if option.help else text)
    facts += [f"  --preset {preset.name}: {preset.summary}" for preset in strategy.presets]
    return [line for fact in facts for line in wrap(fact, 80, subsequent_indent="      ")]


token_app = Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Create, list and revoke tokens for callers of a coordinator.",
)


@token_app.command()
@shared.grouped
def create(
    *,
    role: Role = Option(..., help="Role of its holder."),
    name: str = Option("", help="Name in lists and logs."),
    days: float = Option(
        0.0, min=0.0, help="How long it is valid; 0 for as long as your own credential."
    ),
    scores: bool = Option(False, "--scores", help="A worker's: it may score examples."),
    source: str = Option("", help="A worker's: it may train on its own data of this source."),
    json: shared.Json = False,
    coordinator: shared.Coordinator,
) -> None:
    """Create a token, which is printed now and never again.

    Put it into a file of its holder.
    """
    with coordinator.connect() as client:
        given = client.create_token(role, name=name, days=days, scores=scores, source=source)
    print_result({**vars(given.token), "secret": given.secret}, [given.secret], as_json=json)


@token_app.command("list")
@shared.grouped
def list_tokens(*, json: shared.Json = False, coordinator: shared.Coordinator) -> None:
    """List all tokens, including revoked and expired ones."""
    with coordinator.connect() as client:
        tokens = client.tokens()
    now = datetime.now(UTC)
    rows = []
    for token in tokens:
        state = token_state(token, now)
        role = token.role + (", scores" if token.scores else "")
        role += f", source {token.source}" if token.source else ""
        rows.append(
            (token.token_id, token.name, role, state, _day(token.created_at), token.created_by)
        )
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
    """Print a link to the coordinator's page, which signs you in.

    It signs one browser in, within a minute.
    """
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
