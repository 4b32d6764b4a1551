"""`lipt-worker-pool`, and `lipt up`: a coordinator and a pool of workers in one command.

The coordinator is a process of its own: this package does not import it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lipt.common.config.settings import exit_on_error, load_settings, service_app, with_flags
from lipt.common.process import on_stop_signals
from lipt.common.terminal import Version, print_line
from lipt.worker.settings import PoolSettings

if TYPE_CHECKING:
    import threading

    from lipt.worker.pool import Child

_DEFAULT_ADDRESS = "127.0.0.1:50051"
_PAGE_PORT = 50080
_CALL_SECONDS = 20.0
# Longer than the coordinator's `drain_seconds`.
_STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.2
# Variables only for workers and trainers.
_PEERS_OWN = ("LIPT_TLS_", "LIPT_TOKEN")
_FLAGS = (
    "workers idle_seconds ray gpus_per_worker cpus_per_worker working_dir "
    "tls_cert tls_key tls_ca token_file log_level"
)

pool_app = service_app()
app = typer.Typer(rich_markup_mode=None)

WorkerArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- WORKER_FLAGS]",
        help="After --: flags for every lipt-worker, such as --allow-module mine.",
        show_default=False,
    ),
]


@pool_app.command()
@with_flags(PoolSettings, f"coordinator {_FLAGS}", resource="resources")
def worker_pool(
    flags: dict[str, Any],
    worker_arguments: WorkerArguments = None,
    version: Version = False,  # noqa: ARG001 - shown before anything else
) -> None:
    """Keep as many workers running as there are learners for, here or on a Ray cluster."""
    with exit_on_error("lipt-worker-pool"):
        _run_pool(flags, worker_arguments or [])


def _run_pool(flags: dict[str, Any], worker_arguments: list[str]) -> None:
    import logging

    from lipt.common.observability.logs import configure_logging
    from lipt.worker.pool.pool import open_pool_workers

    settings = load_settings(PoolSettings, config=None, flags=flags)
    configure_logging(settings.log_level)
    logger = logging.getLogger(__name__)
    with open_pool_workers(settings, worker_arguments) as pool:
        # Connecting to Ray replaces handlers.
        on_stop_signals(pool.stop)
        logger.info("up to %d workers for %s", settings.workers, settings.coordinator)
        pool.run()
    logger.info("stopped")


@app.command()
@with_flags(PoolSettings, _FLAGS, resource="resources")
def up(
    flags: dict[str, Any],
    worker_arguments: WorkerArguments = None,
    data: Annotated[
        str | None, typer.Option(help="The data, as lipt-coordinator --data takes it.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model, as lipt-coordinator --model takes it.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with any setting of the coordinator, its TLS files as well."),
    ] = None,
    listen: Annotated[
        str, typer.Option(help="Address that the coordinator serves on.")
    ] = _DEFAULT_ADDRESS,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="Name or address of this machine that workers reach the coordinator by, where "
            "--listen names none. Default: the machine's own name.",
        ),
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="The coordinator's --state-dir.", show_default=False)
    ] = None,
    page: Annotated[
        bool,
        typer.Option("--page", help="Serve the page as well, and print a link that signs you in."),
    ] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="The coordinator's --insecure.")
    ] = False,
    allow_module: Annotated[
        list[str] | None,
        typer.Option(help="Module that a run's model may be imported from; for all. Repeatable."),
    ] = None,
) -> None:
    """Start a coordinator and workers here, until Ctrl-C.

    The workers may also run on a Ray cluster.
    """
    import threading

    from lipt.common.imports import module_of
    from lipt.common.observability.logs import configure_logging
    from lipt.worker.pool.pool import open_pool_workers

    modules = [word for module in allow_module or () for word in ("--allow-module", module)]
    words = [*modules, *(["--insecure"] if insecure else []), "--listen", listen]
    for flag, value in (
        ("--data", data),
        ("--model", model),
        ("--config", config),
        ("--state-dir", state_dir),
        ("--log-level", flags.get("log_level")),
    ):
        words += [flag, str(value)] if value is not None else []
    for own in filter(None, map(module_of, filter(None, (data, model)))):
        modules += ["--allow-module", own]
    # Refuse wrong pool flags before anything starts.
    settings = load_settings(PoolSettings, config=None, flags=flags)
    if page:
        words += _page_flags(listen, config)
    configure_logging(settings.log_level)
    stopping = threading.Event()
    on_stop_signals(stopping.set)
    with _coordinator(words, stopping) as (child, listening):
        if not listening:
            return
        reached = _reachable(listening, address, here=settings.ray is None)
        settings = settings.model_copy(update={"coordinator": reached})
        with open_pool_workers(settings, [*modules, *(worker_arguments or [])]) as pool:

            def stop() -> None:
                stopping.set()
                pool.stop()

            # Again: connecting to Ray replaces handlers.
            on_stop_signals(stop)
            _print_next_steps(data or "the data", listening, settings, page=page)
            if not stopping.is_set():
                pool.run(partial(_require_alive, child))


@contextmanager
def _coordinator(arguments: list[str], stopping: threading.Event) -> Iterator[tuple[Child, str]]:
    """A coordinator and its address; "" if this process was stopped first."""
    import tempfile

    from lipt.worker.pool import Child

    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(_PEERS_OWN)
    }
    with tempfile.TemporaryDirectory(prefix="lipt-up-") as folder:
        file = Path(folder, "address")
        child = Child(
            "lipt.coordinator",
            [*arguments, "--address-file", str(file)],
            environment,
            lambda line: print_line(f"coordinator | {line}", err=True),
        )
        try:
            while not file.exists() and not stopping.wait(_LOOK_SECONDS):
                _require_alive(child)
            yield child, "" if stopping.is_set() else file.read_text(encoding="utf-8").strip()
        finally:
            child.terminate()
            child.end(_STOP_SECONDS)


def _require_alive(child: Child) -> None:
    from lipt.common.errors import ProcessEndedError

    if (status := child.poll()) is not None:
        raise ProcessEndedError(f"the coordinator has ended with status {status}: see above.")


def _reachable(listening: str, host: str | None, *, here: bool) -> str:
    from lipt.common.access.tls import split_address

    served, port = split_address(listening)
    if served not in ("0.0.0.0", "::"):  # noqa: S104 - it is compared
        return listening
    return f"{host or ('localhost' if here else socket.gethostname())}:{port}"


def _print_next_steps(data: str, listening: str, settings: PoolSettings, *, page: bool) -> None:
    flag = "" if listening == _DEFAULT_ADDRESS else f" --coordinator {settings.coordinator}"
    print_line(
        f"lipt serves {data} on {listening}, for up to {settings.workers} workers. They start "
        "with the first run. In another terminal:"
    )
    print_line(f"    lipt run start --watch{flag}")
    print_line(f"    lipt subset get --fraction 0.1 --out subset.npy{flag}")
    if page:
        _print_page(settings, f"lipt dashboard{flag}")
    print_line("Ctrl-C stops all processes; finished work is kept.")


def _page_flags(listen: str, config: Path | None) -> list[str]:
    """The coordinator's flags for its page, unless other settings have its address."""
    from lipt.common.access.tls import split_address
    from lipt.common.config.settings import read_toml
    from lipt.common.imports import import_extra

    for package in ("starlette", "uvicorn"):
        import_extra(package, package=package, extra="dashboard", needed_for="lipt up --page")
    name = "dashboard_listen"
    if f"LIPT_{name.upper()}" in os.environ or (config and name in read_toml(config)):
        return []
    host, _ = split_address(listen)
    shown = f"[{host}]" if ":" in host else host
    return ["--dashboard-listen", f"{shown}:{_free_port(host)}"]


def _free_port(host: str) -> int:
    """The page's usual port, or 0 for any if it is taken."""
    try:
        family = socket.getaddrinfo(host, _PAGE_PORT, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((host, _PAGE_PORT), family=family).close()
    except OSError:
        return 0
    return _PAGE_PORT


def _print_page(settings: PoolSettings, command: str) -> None:
    import grpc

    from lipt.v1.access_pb2 import OpenPageRequest
    from lipt.v1.access_pb2_grpc import AccessServiceStub
    from lipt.worker.pool.pool import connected

    try:
        with connected(settings) as channel:
            stub = AccessServiceStub(channel)
            url = stub.OpenPage(OpenPageRequest(), timeout=_CALL_SECONDS).url
    except grpc.RpcError:
        # The certificate or token for workers opens no page.
        print_line("The page is at the address above. With your own certificate or token,")
        print_line(f"this prints a link that signs you in: {command}")
        return
    print_line(
        f"The page is at {url.partition('/sign-in?')[0]}. Within a minute this link signs in:"
    )
    print_line(f"    {url}")
    print_line(f"For another link: {command}")


def main() -> None:
    pool_app()
