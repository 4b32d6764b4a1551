"""Imports by name: extras, and users' factories."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

from lipt.common.errors import ConfigError, FactoryNotAllowedError, MissingExtraError


def require_extra(module: str, *, package: str, extra: str, needed_for: str) -> None:
    """Look for an optional package without importing it, which may take seconds."""
    # What is imported already need not have come from a file.
    if sys.modules.get(module) is None and importlib.util.find_spec(module) is None:
        raise MissingExtraError(package, extra=extra, needed_for=needed_for)


def import_extra(module: str, *, package: str, extra: str, needed_for: str) -> ModuleType:
    """Import `module` of an optional package."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        # A dependency that the package itself lacks is another fault than its absence.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise MissingExtraError(package, extra=extra, needed_for=needed_for) from None


# A spec may come over the wire, and importing runs code: only allowed modules are imported.

# One attribute only: `module:os.system` must not reach through what a module imported.
_SPEC = re.compile(r"(?P<module>[^\W\d]\w*(?:\.[^\W\d]\w*)*):(?P<attribute>[^\W\d]\w*)")


# Built-in data sets and models that are followed by a path or a name, and are no modules.
SCHEMES = frozenset(
    (
        *("cifar10", "cifar100", "csv", "distilled", "features", "imagefolder", "jsonl", "pairs"),
        *("parquet", "webdataset", "text", "torchvision"),
    )
)
# The options of pairs that name code.
TOWERS = ("image_tower", "text_tower")


def is_factory_spec(spec: str) -> bool:
    """Whether `spec` has the form `package.module:factory`."""
    return _SPEC.fullmatch(spec) is not None


def module_of(spec: str) -> str:
    """The module that `package.module:factory` names; empty where `spec` has another form."""
    match = _SPEC.fullmatch(spec)
    return match["module"] if match is not None else ""


def modules_of(name: str) -> tuple[str, ...]:
    """The modules that the name of a data set or a model says: its own, or its towers'."""
    path, _, options = name.partition("?")
    if path.startswith("pairs:"):
        parted = (option.partition("=") for option in options.split("&"))
        values = {key: value for key, _, value in parted}
        return tuple(filter(None, (module_of(values.get(tower, "")) for tower in TOWERS)))
    module = module_of(name)
    return (module,) if module and module not in SCHEMES else ()


def load_factory(spec: str, *, allowed_modules: Collection[str]) -> Callable[..., Any]:
    """Import what `package.module:factory` names; the factory is not called.

    The current directory is importable, as under `python -m`, so that a file
    beside the user's configuration works without being installed.

    Raises:
        FactoryNotAllowedError: neither the module nor a parent of it is allowed.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise ConfigError(
            f"{spec!r} does not name a factory. Write package.module:factory, for example "
            "my_models:build for the function `build` in my_models.py."
        )
    module_name, attribute = match["module"], match["attribute"]
    _require_allowed(spec, module_name, allowed_modules)
    module = _import(repr(spec), module_name)
    try:
        factory = getattr(module, attribute)
    except AttributeError:
        raise ConfigError(
            f"{spec!r}: the module {module_name!r} ({_file_of(module)}) has no attribute "
            f"{attribute!r}. Define it there, or correct the name."
        ) from None
    if not callable(factory):
        raise ConfigError(
            f"{spec!r} is a {type(factory).__name__}, which cannot be called. Name a function "
            "or class that makes the object, not the object itself."
        )
    return factory  # type: ignore[no-any-return]


def require_importable(modules: Collection[str]) -> None:
    """Import the modules that `--allow-module` names."""
    for module_name in modules:
        _import(f"--allow-module {module_name}", module_name)


def _require_allowed(spec: str, module_name: str, allowed_modules: Collection[str]) -> None:
    parts = module_name.split(".")
    parents = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    if parents.isdisjoint(allowed_modules):
        allowed = ", ".join(sorted(allowed_modules)) or "none"
        raise FactoryNotAllowedError(
            f"{spec!r} runs code from the module {module_name!r}, which this process does not "
            f"allow (allowed: {allowed}). A process imports what its own --data and --model name, "
            f"and what others name only where it is allowed: start it with --allow-module "
            f"{module_name} if you trust that module."
        )


def _import(named: str, module_name: str) -> ModuleType:
    directory = os.getcwd()  # noqa: PTH109 - sys.path holds strings
    # What is imported already is not looked for, and no path changes for it.
    if module_name not in sys.modules and directory not in sys.path:
        sys.path.insert(0, directory)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _import_failed(named, module_name, error) from error
        raise ConfigError(
            f"{named}: there is no module {error.name!r} in {directory} or among the installed "
            "packages. Start this process in the directory that holds it, or install it."
        ) from None
    except Exception as error:
        raise _import_failed(named, module_name, error) from error


def _import_failed(named: str, module_name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{named}: importing {module_name!r} failed with {type(error).__name__}: {error}. "
        f"Check it with: python -c 'import {module_name}'"
    )


def _file_of(module: ModuleType) -> str:
    return getattr(module, "__file__", None) or "no file"
