"""Process settings: a TOML file, overridden by LIPT_* variables, then by flags."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import EnvSettingsSource

from lipt.common.config.run_config import Section, merge

# Errors import gRPC, so they are imported on use: `--help` stays fast.

SectionT = TypeVar("SectionT", bound=Section)

# Settings of both services.
LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR"],
    Field(description="Messages of this level and above are logged."),
]
LogFormat = Annotated[
    Literal["text", "json"],
    Field(
        description="Form of log lines: `text`, or `json` for an object a line, with the ids of "
        "its run and its assignment."
    ),
]
MetricsAddress = Annotated[
    str | None,
    Field(
        description="Address of Prometheus metrics, at /metrics; https where there are TLS files. "
        "Default: none are served."
    ),
]
TlsKey = Annotated[Path | None, Field(description="PEM file of the certificate's key.")]


def example_file(name: str) -> str:
    return files("lipt.deploy").joinpath(name).read_text(encoding="utf-8")


def load_settings(
    model: type[SectionT], *, config: Path | None, flags: Mapping[str, Any]
) -> SectionT:
    from lipt.common.config.values import explain
    from lipt.common.errors import ConfigError

    # `LIPT_RUN__LEARNERS__NUM_STEPS` is the setting run.learners.num_steps.
    variables = EnvSettingsSource(
        model,  # type: ignore[arg-type]  # it reads the fields of any model
        env_prefix="LIPT_",
        env_nested_delimiter="__",
    )
    layers = merge(read_toml(config) if config else {}, variables())
    try:
        return model.model_validate(merge(layers, flags))
    except ValidationError as error:
        where = f"{config}: " if config else ""
        raise ConfigError(f"{where}{explain(error, model)}") from None


def read_toml(path: Path) -> dict[str, Any]:
    from lipt.common.errors import ConfigError

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"--config {path} cannot be read: {error.strerror}. "
            "lipt-coordinator --print-config and lipt-worker --print-config print one."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} is not TOML: {error}") from None
