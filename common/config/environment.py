"""Variables: settings as LIPT_*; a name that no process knows is refused at the start.

One environment may be for several processes, so each knows the names of all. A misspelt name
would leave its setting at the default, which may let strangers in.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_origin

from lipt.common.text import did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel

_PREFIX = "LIPT_"
# Packages above this one, so they are imported by name.
_MODELS = (
    ("lipt.coordinator.settings", "CoordinatorSettings"),
    ("lipt.worker.settings", "WorkerSettings"),
    ("lipt.worker.settings", "PoolSettings"),
)
# Options of `lipt`, which starts fast without those modules, and variables of lipt.sbatch and of
# the tests.
_MORE = """
    LIPT_COORDINATOR LIPT_TLS_CERT LIPT_TLS_KEY LIPT_TLS_CA LIPT_TOKEN LIPT_TOKEN_FILE
    LIPT_STATE_DIR LIPT_WAIT LIPT_HOME LIPT_HEAD LIPT_PORT LIPT_FIRST_NODE_WORKS
    LIPT_MAX_REQUEUES LIPT_DATA
"""
_OTHERS = frozenset(_MORE.split())
# Kubernetes describes a Service named lipt-NAME to all containers of its namespace.
_OF_A_SERVICE = re.compile(
    r"LIPT_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_PORT, _URL = re.compile(r"LIPT_(\w+_)?PORT"), re.compile(r"(tcp|udp|sctp)://")


@cache
def variables_of(model: type[BaseModel]) -> Mapping[str, str]:
    """The dotted settings of a model by their variables: LIPT_RUN__SEED is run.seed."""
    from lipt.common.config.knobs import setting_names

    return {f"{_PREFIX}{name.upper().replace('.', '__')}": name for name in setting_names(model)}


def require_known_variables(environment: Mapping[str, str], own: Collection[str] = _OTHERS) -> None:
    """Raise a ConfigError for a LIPT_* variable that no process knows, in any case of letters."""
    given = {name for name in environment if name.upper().startswith(_PREFIX)}
    unknown = {name for name in given - _OTHERS - set(own) if not _is_service(environment, name)}
    known = _OTHERS.union(*_known()) if unknown else _OTHERS
    for name in sorted(unknown - known):
        from lipt.common.errors import ConfigError

        remedy = did_you_mean(name, known, most=1) or " Unset it, or correct its name."
        raise ConfigError(f"the variable {name[:80]} is no setting of any process of lipt.{remedy}")


def _known() -> Iterator[Collection[str]]:
    for module, name in _MODELS:
        yield variables_of(getattr(import_module(module), name))


def _is_service(environment: Mapping[str, str], name: str) -> bool:
    is_port = _PORT.fullmatch(name) and _URL.match(environment[name])
    return bool(is_port or _OF_A_SERVICE.fullmatch(name))


def read_variables(model: type[BaseModel], environment: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a model that the environment has, nested; lists are written as in TOML."""
    from lipt.common.config.knobs import field_of
    from lipt.common.config.run_config import merge
    from lipt.common.errors import ConfigError
    from lipt.common.nested import toml_value

    variables = variables_of(model)
    require_known_variables(environment, variables)
    nested: dict[str, Any] = {}
    for variable, setting in variables.items():
        if (text := environment.get(variable)) is None:
            continue
        if not text:
            raise ConfigError(f"the variable {variable} is empty. Unset it, or give it a value.")
        is_list = get_origin(field_of(model, setting).annotation) is tuple
        *sections, leaf = setting.split(".")
        given: dict[str, Any] = {leaf: toml_value(text) if is_list else text}
        for section in reversed(sections):
            given = {section: given}
        nested = merge(nested, given)
    return nested
