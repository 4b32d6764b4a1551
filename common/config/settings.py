"""Settings of processes: flags, environment, and a file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)


def example_file(name: str) -> str:
    """The content of a file of deploy/, such as "run.example.toml"."""
    return files("lipt.deploy").joinpath(name).read_text(encoding="utf-8")


# A TOML file, then LIPT_* variables (`LIPT_RUN__LEARNERS__NUM_STEPS`), then flags: later ones win.
# Errors import gRPC, so they are imported where they are raised: `--help` stays fast.

SettingsT = TypeVar("SettingsT", bound="LayeredSettings")

# Settings that both services have.
LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR"],
    Field(description="Messages of this level and above are logged."),
]
LogFormat = Annotated[
    Literal["text", "json"],
    Field(
        description="How log lines look: `text`, or `json` for an object a line, with the ids of "
        "the run and the assignment that it belongs to."
    ),
]
MetricsAddress = Annotated[
    str | None,
    Field(
        description="Address of Prometheus metrics, at /metrics; https where there are TLS files. "
        "Default: none are served."
    ),
]
TokenFile = Annotated[
    Path | None,
    Field(
        description="File with the token that a coordinator is shown, which asks for one; it is "
        "read for every call. Default: what `token` says, and on this machine the local token."
    ),
]
TokenText = Annotated[
    SecretStr | None,
    Field(description="The token itself, in place of a file: best as the variable LIPT_TOKEN."),
]
TlsKey = Annotated[Path | None, Field(description="PEM file of the certificate's key.")]


class LayeredSettings(BaseSettings):
    """Base of a process's settings; unknown keys are refused."""

    model_config = SettingsConfigDict(
        env_prefix="LIPT_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags over the environment over the file; each merges into the one below."""
        flags = _part(settings_cls, init_settings, "flags")
        toml = _part(settings_cls, init_settings, "toml")
        return flags, env_settings, toml


def _part(
    settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, key: str
) -> InitSettingsSource:
    given = init_settings() if callable(init_settings) else {}
    return InitSettingsSource(settings_cls, init_kwargs=dict(given.get(key, {})))


def load_settings(
    model: type[SettingsT], *, config: Path | None, flags: Mapping[str, Any]
) -> SettingsT:
    """Settings of all three layers, validated together."""
    from lipt.common.config.values import explain
    from lipt.common.errors import ConfigError

    toml = read_toml(config) if config else {}
    try:
        return model(flags=_given(flags), toml=toml)  # type: ignore[call-arg]
    except ValidationError as error:
        where = f"{config}: " if config else ""
        raise ConfigError(f"{where}{explain(error, model)}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    from lipt.common.errors import ConfigError

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"--config {path} cannot be read: {error.strerror}. "
            "One to start from is what `lipt-coordinator --print-config` prints, "
            "or `lipt-worker --print-config` for a worker."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} is not TOML: {error}") from None


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            nested = _given(value)
            if nested:
                kept[key] = nested
        elif value is not None:
            kept[key] = value
    return kept
