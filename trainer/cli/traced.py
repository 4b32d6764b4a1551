"""Traced commands: what a `lipt` command does is a span, where OTEL_* variables ask for traces.

A shell script that sets TRACEPARENT has its commands in one trace.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from lipt.common.observability.exporting import exporting, wanted_exporters
from lipt.common.observability.tracing import attached, span


@contextmanager
def tracing() -> Iterator[None]:
    """Export the spans of this process during the block, where the environment asks for it."""
    # Others use these variables as well: a command says nothing where it cannot follow them.
    with exporting("lipt", problem_level=logging.DEBUG):
        yield


@contextmanager
def as_span(group: Any, context: Any) -> Iterator[None]:
    """The block as a span with the name of the command that was typed."""
    if not wanted_exporters(os.environ):
        yield
        return
    parent, done = os.environ.get("TRACEPARENT", ""), None
    with attached(parent), span(" ".join(["lipt", *_words(group, context, sys.argv[1:])])):
        try:
            yield
        except typer.Exit as end:
            if end.exit_code:
                raise
            done = end
    if done is not None:
        raise done


def _words(command: Any, context: Any, arguments: list[str]) -> Iterator[str]:
    """The words of the command line that name a command, without any that a user made up."""
    for argument in arguments:
        find = getattr(command, "get_command", None)
        command = find and find(context, argument)
        if command is None:
            return
        yield argument
