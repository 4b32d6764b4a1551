"""Opening: a pool put together from its settings, and run until the process is told to stop."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lipt.common.access.tokens import TokenSource
from lipt.common.errors import ConfigError
from lipt.common.imports import import_extra
from lipt.common.network.tls import TlsFiles, split_address
from lipt.common.rpc.channel import open_channel
from lipt.worker.pool.demand import DemandSource
from lipt.worker.pool.engine import Engine
from lipt.worker.pool.pool import Pool, PoolOptions
from lipt.worker.pool.processes import LocalEngine
from lipt.worker.pool.ray_engine import RayEngine, RayOptions
from lipt.worker.pool.scaling import Bounds
from lipt.worker.pool.settings import PoolSettings

logger = logging.getLogger(__name__)


@contextmanager
def opened(
    settings: PoolSettings, worker_arguments: Sequence[str], *, say: Callable[[str], object]
) -> Iterator[Pool]:
    """A pool that has not begun; its workers end with the block.

    Args:
        settings: the pool's.
        worker_arguments: what every `lipt-worker` is told besides.
        say: takes the lines of workers that run on this machine.

    Raises:
        ConfigError: a file or an address does not work.
        UnreachableError: there is no such Ray cluster.
    """
    split_address(settings.coordinator)
    tls = TlsFiles.from_options(settings.tls_cert, settings.tls_key, settings.tls_ca)
    secret = settings.token.get_secret_value() if settings.token is not None else None
    token = TokenSource.from_options(settings.token_file, secret)
    options = PoolOptions(
        Bounds(settings.min_workers, settings.workers),
        settings.idle_seconds,
        [*_own_arguments(settings), *worker_arguments],
    )
    # Its interpreter loads nothing of the engine's before the files have been read.
    engine = _engine(settings, say)
    try:
        with open_channel(settings.coordinator, tls, token) as channel:
            source = DemandSource(channel, has_data=_have_data(worker_arguments))
            yield Pool(options, source, engine)
    finally:
        logger.info("ending all workers")
        engine.close()


def _have_data(worker_arguments: Sequence[str]) -> bool:
    return any(word.partition("=")[0] == "--worker-data" for word in worker_arguments)


def _engine(settings: PoolSettings, say: Callable[[str], object]) -> Engine:
    if settings.ray is None:
        return LocalEngine(gpus_per_worker=settings.gpus_per_worker, say=say)
    options = RayOptions(
        settings.ray,
        settings.cpus_per_worker,
        settings.gpus_per_worker,
        dict(map(_resource, settings.resources)),
        _runtime_env(settings),
        _environment(settings),
    )
    engine = RayEngine(options)
    engine.require_reachable(settings.coordinator)
    return engine


def _own_arguments(settings: PoolSettings) -> list[str]:
    """What every worker is told of the pool's own settings: paths, and no secret."""
    files = {
        "--tls-cert": settings.tls_cert,
        "--tls-key": settings.tls_key,
        "--tls-ca": settings.tls_ca,
        "--token-file": settings.token_file,
    }
    flags = {
        "--coordinator": settings.coordinator,
        "--log-level": settings.log_level,
        **{flag: str(path.absolute()) for flag, path in files.items() if path is not None},
    }
    return [word for flag in flags.items() for word in flag]


def _environment(settings: PoolSettings) -> dict[str, str]:
    if settings.token is None or settings.token_file is not None:
        return {}
    return {"LIPT_TOKEN": settings.token.get_secret_value()}


def _resource(text: str) -> tuple[str, float]:
    name, _, amount = text.partition("=")
    try:
        return name, float(amount)
    except ValueError:
        raise ConfigError(
            f"--resource {text!r} is not NAME=AMOUNT. Example: --resource accelerator=1"
        ) from None


def _runtime_env(settings: PoolSettings) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if (path := settings.runtime_env) is not None:
        made = _mapping(path)
    if settings.working_dir is not None:
        made["working_dir"] = str(settings.working_dir.absolute())
    return made


def _mapping(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--runtime-env {path} cannot be read: {error.strerror}.") from None
    try:
        found = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except ValueError as error:
        raise ConfigError(f"--runtime-env {path} cannot be read: {error}.") from None
    if not isinstance(found, dict):
        raise ConfigError(f"--runtime-env {path} is no mapping. Example: pip: [lipt]")
    return found


def _yaml(text: str) -> object:
    # It comes with Ray, which reads such files with it.
    yaml = import_extra("yaml", package="pyyaml", extra="ray", needed_for="--runtime-env")
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(error) from None
