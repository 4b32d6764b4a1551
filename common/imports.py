"""Imports by name: extras, and what a peer may name only where it is allowed.

That is users' factories, as imports run code, and folders of causal models, as they read files.
"""

from __future__ import annotations

import importlib
import os.path
import re
import sys
from collections.abc import Callable, Collection
from inspect import signature
from types import ModuleType
from typing import Any

from lipt.common.errors import ConfigError, FactoryNotAllowedError, MissingExtraError

# One attribute only: `module:os.system` must not reach a module's imports.
_SPEC = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<attribute>[^\W\d]\w*)")
# Prefixes of built-in data sets and models, not modules.
SCHEMES = frozenset(
    (
        *("cifar10", "cifar100", "csv", "distilled", "features", "imagefolder", "jsonl", "pairs"),
        *("parquet", "webdataset", "text", "torchvision"),
    )
)
# Begins the name of a live model, which no other process can build.
OWN = "own:"
# Begins the name of a causal model in a folder; an adapter's folder may follow.
CAUSAL = "causal:"
# Options of pairs that name code.
TOWERS = ("image_tower", "text_tower")


def missing_extra(package: str, *, extra: str, needed_for: str) -> MissingExtraError:
    return MissingExtraError(
        f"{needed_for} needs the package {package!r}. "
        f"Install it in LiPT's source folder: pip install '.[{extra}]'"
    )


def import_extra(module: str, *, package: str, extra: str, needed_for: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # The package may lack its own dependency.
        if not _is_within(module, error.name):
            raise
        raise missing_extra(package, extra=extra, needed_for=needed_for) from None


def module_of(spec: str) -> str:
    """The module in `package.module:factory`; empty for another form."""
    match = _SPEC.fullmatch(spec)
    return match["module"] if match is not None else ""


def modules_of(name: str) -> tuple[str, ...]:
    """The modules named by a data set or model, including towers', or a causal model's folder."""
    if name.startswith(CAUSAL):
        return (name,)
    path, _, options = name.partition("?")
    if path.startswith("pairs:"):
        parted = (option.partition("=") for option in options.split("&"))
        values = {key: value for key, _, value in parted}
        return tuple(filter(None, (module_of(values.get(tower, "")) for tower in TOWERS)))
    module = module_of(name)
    return (module,) if module and module not in SCHEMES else ()


def load_factory(spec: str, *, allowed_modules: Collection[str]) -> Callable[..., Any]:
    """Import `package.module:factory` of an allowed module, also from the current directory."""
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise ConfigError(f"{spec!r} names no factory. Write it as package.module:factory.")
    name, attribute = match["module"], match["attribute"]
    require_allowed(name, allowed_modules, f"{spec!r} runs code from the module {name!r}")
    module = _import(repr(spec), name)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        file = getattr(module, "__file__", name)
        raise ConfigError(f"{spec!r}: {file} has no function or class {attribute!r}. Define it.")
    return factory  # type: ignore[no-any-return]


def is_allowed(name: str, allowed: Collection[str]) -> bool:
    """Whether a module or a causal model is one of the allowed, or inside of one."""
    if name.startswith(CAUSAL):
        folders = [f"{folder}/" for entry in allowed for folder in folders_of(entry)]
        return all(f"{folder}/".startswith(tuple(folders)) for folder in folders_of(name))
    return any(_is_within(name, entry) for entry in allowed)


def folders_of(name: str) -> tuple[str, ...]:
    """A causal model's folder, and that of an adapter if it has one; none of another name."""
    if not name.startswith(CAUSAL):
        return ()
    model, _, adapter = name.removeprefix(CAUSAL).rpartition("@")
    paths = (model, adapter) if model else (adapter,)
    # An unknown user's home stays.
    return tuple(os.path.normpath(os.path.expanduser(path)) for path in paths)  # noqa: PTH111


def require_allowed(name: str, allowed: Collection[str], clause: str) -> None:
    """Refuse a module or a causal model that is not allowed; `clause` says what it does."""
    if not is_allowed(name, allowed):
        listed = ", ".join(sorted(allowed)) or "none"
        raise FactoryNotAllowedError(
            f"{clause}, which this process does not allow (allowed: {listed}). Start it with "
            f"--allow-module {name} if you trust it."
        )


def call_factory(spec: str, factory: Callable[..., Any], **arguments: int) -> Any:
    """Call a factory with these arguments, or without any."""
    try:
        return call_by_name_or_place(factory, **arguments)
    except Exception as error:
        given = ", ".join(f"{name}={value}" for name, value in arguments.items())
        named = ", ".join(["*", *arguments]) if arguments else ""
        raise ConfigError(
            f"{spec!r} called with ({given}) failed with {type(error).__name__}: {error}. "
            f"Define it as def factory({named})."
        ) from error


def call_by_name_or_place(factory: Callable[..., Any], **arguments: int) -> Any:
    """Call a factory by keyword or, where its arguments have other names, by position."""
    if not _binds(factory, **arguments) and _binds(factory, *arguments.values()):
        return factory(*arguments.values())
    return factory(**arguments)


def _binds(factory: Callable[..., Any], *args: int, **keywords: int) -> bool:
    try:
        signature(factory).bind(*args, **keywords)
    except (TypeError, ValueError):  # ValueError: a function in C without a signature
        return False
    return True


def require_importable(modules: Collection[str]) -> None:
    for name in modules:
        if name.startswith(CAUSAL):
            continue
        _import(f"--allow-module {name}", name)


def _is_within(module: str, parent: str | None) -> bool:
    return parent is not None and f"{module}.".startswith(f"{parent}.")


def _import(named: str, module: str) -> ModuleType:
    directory = os.getcwd()  # noqa: PTH109 - sys.path holds strings
    if module not in sys.modules and directory not in sys.path:
        sys.path.insert(0, directory)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except Exception as error:
        why = f"importing {module!r} failed with {type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and _is_within(module, error.name):
            why = f"there is no module {error.name!r} in {directory} or installed"
        raise ConfigError(
            f"{named}: {why}. Start this process in the module's directory, or install it, so that "
            f"it can be imported: python -c 'import {module}'"
        ) from error
