"""Log context: which run, learner and worker a log line belongs to, whoever logs it.

Kept where asyncio keeps what belongs to a task, so that a line of a library has it as well. A
task has what its maker had; a thread has to be given it (`contextvars.copy_context().run`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

_NOTHING: Mapping[str, str] = MappingProxyType({})
_context: ContextVar[Mapping[str, str]] = ContextVar("lipt_log_context", default=_NOTHING)


def log_context() -> Mapping[str, str]:
    """What a line that is logged now belongs to, as ids by `run`, `assignment` and so on."""
    return _context.get()


def log_about(**ids: object) -> None:
    """Let what this task or thread logs from here on belong to these as well.

    For a task that does nothing else, such as a call's; others take `logging_about`.
    """
    _context.set({**_context.get(), **_given(ids)})


@contextmanager
def logging_about(**ids: object) -> Iterator[None]:
    """Let what the block logs belong to these as well."""
    token = _context.set({**_context.get(), **_given(ids)})
    try:
        yield
    finally:
        _context.reset(token)


def _given(ids: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in ids.items() if value != ""}
