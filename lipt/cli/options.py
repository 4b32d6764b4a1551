"""Options that several commands share, settings and paths; a mistake in them is a usage error."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

from typer import Argument, BadParameter, Context, Option

if TYPE_CHECKING:
    from lipt.common.access.tls import TlsFiles
    from lipt.trainer.client.client import Client
    from lipt.trainer.main_training import Recipe

ModelT = TypeVar("ModelT")

Json = Annotated[bool, Option("--json", help="Print JSON for scripts.")]
Run = Annotated[
    str, Option("--run", "-r", help="A run's id or name, or latest, the newest that is ready.")
]
RunArgument = Annotated[
    str, Argument(metavar="RUN", help="A run's id or name, or latest, the newest.")
]
Fraction = Annotated[
    float | None, Option("--fraction", "-f", help="Share of the data set to keep, in (0, 1].")
]
Budget = Annotated[int | None, Option("--budget", "-k", help="How many examples to keep instead.")]
Options = Annotated[
    list[str] | None,
    Option("--option", metavar="NAME=VALUE", help="An option of the strategy; repeatable."),
]
Preset = Annotated[
    str | None,
    Option(help="Options by one name, such as paper: see 'lipt strategies NAME'. --option wins."),
]
Proxy = Annotated[
    str | None,
    Option(
        help="Proxy model: soup (the run's weights), auto, or ridge: and some of patches, columns, "
        "soup, learners, initial, user, backbone, joined by +. Default: the strategy's own."
    ),
]
Settings = Annotated[
    list[str] | None, Option("--set", metavar="NAME=VALUE", help="Any setting; repeatable.")
]
Model = Annotated[str, Option(help="resnet8, resnet18, torchvision:NAME, ...")]
OwnModel = Annotated[str | None, Option("--model", help="The model; else one that suits.")]
RunFile = Annotated[Path | None, Option("--config", help="A TOML file with a [run] table.")]
Device = Annotated[str, Option(help="Where to train: auto, cpu, cuda or cuda:N.")]
ImageSize = Annotated[
    int | None, Option(help="Scale images to so many pixels a side, as lipt-coordinator does.")
]
AllowModule = Annotated[
    list[str] | None,
    Option(
        help="A module that may be imported besides those that --data, --test and --model name; "
        "repeatable."
    ),
]


@dataclass(frozen=True)
class CsvFile:
    delimiter: str = Option("", help="Between a CSV file's cells; else it is recognized.")
    encoding: str = Option("", help="Of a CSV file, such as latin-1; else UTF-8.")
    decimal: str = Option("", help="A CSV file's decimal mark, . or ,; else recognized.")

    def name(self, data: str) -> str:
        """The name of the data with these options."""
        from lipt.data.registry import name_with_csv_options

        return name_with_csv_options(data, **vars(self))


@dataclass(frozen=True)
class LocalRun:
    """A run in this process: its seed, settings, and where its parts come from."""

    seed: int = Option(0, min=0, help="Seed of everything random.")
    settings: Settings = None
    config: RunFile = None
    image_size: ImageSize = None
    device: Device = "auto"
    allow_module: AllowModule = None

    def keywords(
        self, *named: str | None, flags: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Arguments of the library's calls; modules that `named` data and models name may load.

        `flags` are further settings of the run, by dotted name.
        """
        return {
            "seed": self.seed,
            "run": collect_overrides(flags or {}, self.settings, self.config),
            "image_size": self.image_size,
            "device": self.device,
            "allow_modules": modules_of(self.allow_module, *named),
        }


def modules_of(allowed: Sequence[str] | None, *specs: str | None) -> tuple[str, ...]:
    """The modules that a command may import: those allowed, and those that its own flags name."""
    from lipt.common.imports import modules_of as named_by

    named = (module for spec in specs if spec is not None for module in named_by(spec))
    return (*(allowed or ()), *named)


def _shared(flag: str, default: Any, text: str, **more: Any) -> Any:
    return Option(
        default, flag, envvar=f"LIPT_{flag[2:].replace('-', '_').upper()}", help=text, **more
    )


@dataclass(frozen=True)
class Coordinator:
    address: str = _shared(
        "--coordinator", "127.0.0.1:50051", "Where lipt-coordinator listens.", metavar="HOST:PORT"
    )
    tls_cert: Path | None = _shared("--tls-cert", None, "This side's certificate (PEM).")
    tls_key: Path | None = _shared("--tls-key", None, "The certificate's key (PEM).")
    tls_ca: Path | None = _shared("--tls-ca", None, "The coordinator's authority (PEM).")
    token_file: Path | None = _shared(
        "--token-file", None, "A file with the coordinator's token; or LIPT_TOKEN with it."
    )
    wait: float = _shared(
        "--wait", 0.0, "Wait so long for a coordinator that starts.", metavar="SECONDS", min=0
    )

    def tls(self) -> TlsFiles | None:
        from lipt.common.access.tls import TlsFiles

        return TlsFiles.from_options(self.tls_cert, self.tls_key, self.tls_ca)

    def connect(self) -> Client:
        """Open a client; with `--wait`, wait for the coordinator."""
        from lipt.cli.terminal_client import TerminalClient

        # No flag takes the token itself: everybody can read command lines.
        token = os.environ.get("LIPT_TOKEN") if self.token_file is None else None
        tls, file = self.tls(), self.token_file
        client = TerminalClient(self.address, tls=tls, token=token, token_file=file)
        try:
            if self.wait:
                client.reach(self.wait)
        except BaseException:
            client.close()
            raise
        return client

    def is_named(self, context: Context) -> bool:
        names = (field.name for field in dataclasses.fields(self))
        sources = (context.get_parameter_source(name) for name in names)
        return any(source is not None and source.name != "DEFAULT" for source in sources)


@dataclass(frozen=True)
class TrainingFlags:
    epochs: int | None = Option(None, help="Passes over the subset, the largest of several (200).")
    steps: int | None = Option(None, help="Optimizer steps of a training, in place of --epochs.")
    settings: list[str] | None = Option(
        None, "--set", metavar="NAME=VALUE", help="A setting of the recipe: learning_rate=0.05."
    )

    def settings_given(self, *, soft_labels: float = 0.0) -> dict[str, Any]:
        given = {"epochs": self.epochs, "steps": self.steps, "soft_labels": soft_labels or None}
        return collect_overrides(given, self.settings)

    def recipe(self, *, soft_labels: float = 0.0) -> Recipe:
        from lipt.trainer.main_training import Recipe

        return validated(Recipe, self.settings_given(soft_labels=soft_labels))


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer that takes an option for each field of its dataclass parameters."""
    hints = get_type_hints(command)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = list(_parameters(command))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        made = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**values, **made)

    # Typer reads a command's options from these.
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    return run


def _parameters(called: Callable[..., Any]) -> Iterator[Parameter]:
    hints = get_type_hints(called, include_extras=True)
    for name, parameter in inspect.signature(called).parameters.items():
        if is_dataclass(hints[name]):
            yield from _parameters(hints[name])
        else:
            yield parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)


def parse_options(texts: Sequence[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, separator, value = (part.strip() for part in text.partition("="))
        if not separator or not all(name.split(".")):
            raise BadParameter(f"{text!r} is not NAME=VALUE. Example: learners.num_steps=5")
        _require_new(name, value, pairs)
        pairs[name] = value
    return pairs


def _require_new(name: str, value: Any, given: Mapping[str, Any]) -> None:
    if name in given:
        raise BadParameter(f"{name} was given twice: {given[name]!r} and {value!r}. Drop one.")


def parse_names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise BadParameter(f"{text!r} names nothing: give at least one name, e.g. craig,grand")
    return names


def collect_overrides(
    flags: Mapping[str, Any],
    assignments: Sequence[str] | None,
    config: Path | None = None,
    preset: str | None = None,
) -> dict[str, Any]:
    """Settings nested as in `RunConfig`: flags and `--set`, over [run] of a file, over a preset."""
    from lipt.common.config.run_config import PRESETS, merge
    from lipt.common.config.settings import read_toml
    from lipt.common.nested import toml_value

    given = {name: value for name, value in flags.items() if value is not None}
    for name, text in parse_options(assignments).items():
        value = toml_value(text)
        _require_new(name, value, given)
        given[name] = value
    nested: dict[str, Any] = {}
    for name, value in given.items():
        *groups, leaf = name.split(".")
        level = nested
        for group in groups:
            level = level.setdefault(group, {})
            if not isinstance(level, dict):
                raise BadParameter(f"{name}: {group} was given a value, so it is no group.")
        if leaf in level:
            raise BadParameter(f"{name} is a group, and settings in it were given, too. Drop one.")
        level[leaf] = value
    if preset is not None:
        if preset not in PRESETS:
            known = ", ".join(PRESETS)
            raise BadParameter(f"there is no preset {preset!r} of a run. Choose one of: {known}.")
        return merge(PRESETS[preset], collect_overrides(flags, assignments, config))
    if config is None:
        return nested
    with usage_errors():
        table = read_toml(config).get("run")
    if not isinstance(table, dict):
        raise BadParameter(
            f"{config} has no [run] table. `lipt-coordinator --print-config` shows one."
        )
    return merge(table, nested)


def validated(kind: type[ModelT], values: Mapping[str, Any]) -> ModelT:
    from lipt.common.config.values import validate

    with usage_errors():
        return validate(kind, values)


@contextmanager
def usage_errors() -> Iterator[None]:
    from lipt.common.errors import LiptError

    try:
        yield
    except LiptError as error:
        raise BadParameter(str(error)) from None


def require_size(fraction: float | None, budget: int | None) -> None:
    if (fraction is None) == (budget is None):
        raise BadParameter("give one of --fraction and --budget, e.g. --fraction 0.1")


def require_place(path: Path, *, folder: bool = False) -> None:
    """Check that there can be a file, or a folder, of this name."""
    if path.is_dir() and not folder:
        raise BadParameter(f"{path} is a directory. Name a file in it.")
    if path.is_file() and folder:
        raise BadParameter(f"{path} is a file. Name a folder.")
    if not path.parent.is_dir():
        raise BadParameter(f"{path.parent} is not a directory. Make it first.")
    if not os.access(path.parent, os.W_OK):
        raise BadParameter(f"{path.parent} cannot be written to. Name another place.")


def require_replaceable(*paths: Path | None) -> None:
    """Check that files can be written, each in place of the one of its name."""
    for path in filter(None, paths):
        require_place(path)
        if path.exists() and not path.is_file():
            raise BadParameter(f"{path} is not a regular file. Name another.")


def require_not_data(paths: Sequence[Path | None], *data: str | None) -> None:
    """Check that no file of data, by its name, is written over."""
    named = [source for source in data if source is not None]
    if not named:
        return
    from lipt.data.objects import require_other_file

    with usage_errors():
        for path in filter(None, paths):
            require_other_file(path, *named)


def require_apart(paths: Mapping[str, Path | None]) -> None:
    """Check that no file is named twice, where one would overwrite the other."""
    taken: dict[Path, str] = {}
    for flag, path in paths.items():
        other = flag if path is None else taken.setdefault(path.resolve(), flag)
        if other != flag:
            raise BadParameter(f"{other} and {flag} are both {path}. Name two files.")
