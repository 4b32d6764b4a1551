"""Renewing channel: one whose calls go over a new connection once its TLS files have changed.

gRPC keeps the certificates that a channel was opened with, also when it connects again. So calls
that begin after a change get another channel; those under way stay on theirs, which is closed when
they are done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from lipt.common.network.renewal import Renewal
from lipt.common.network.tls import TlsContents


class _Opened:
    """A channel, what it was opened with, and how many calls are under way on it."""

    def __init__(self, contents: TlsContents, channel: grpc.Channel) -> None:
        self.contents = contents
        self.channel = channel
        self.num_calls = 0


class RenewingChannel(grpc.Channel):
    """A channel that follows the files of `renewal`.

    Args:
        renewal: asked at every call.
        connect: opens a channel with these contents; it connects when it is first used.
    """

    def __init__(self, renewal: Renewal, connect: Callable[[TlsContents], grpc.Channel]) -> None:
        self._renewal, self._connect = renewal, connect
        self._lock = threading.Lock()
        contents = renewal.current()
        self._newest = _Opened(contents, connect(contents))
        self._older: list[_Opened] = []
        self._closed = False

    def begin_call(self) -> _Opened:
        """The channel to make a call on; `end_call` says when it is done."""
        contents = self._renewal.current()
        with self._lock:
            if contents is not self._newest.contents and not self._closed:
                self._older.append(self._newest)
                self._newest = _Opened(contents, self._connect(contents))
            newest = self._newest
            newest.num_calls += 1
            done = [opened for opened in self._older if not opened.num_calls]
            self._older = [opened for opened in self._older if opened.num_calls]
        for opened in done:
            opened.channel.close()
        return newest

    def end_call(self, opened: _Opened) -> None:
        """Note that a call is done; it may be gRPC's own thread that says so, so close nothing."""
        with self._lock:
            opened.num_calls -= 1

    def unary_unary(self, *arguments: Any, **options: Any) -> Any:
        """As gRPC's; the other three as well."""
        return _Method(self, lambda channel: channel.unary_unary(*arguments, **options))

    def unary_stream(self, *arguments: Any, **options: Any) -> Any:  # noqa: D102
        return _StreamMethod(self, lambda channel: channel.unary_stream(*arguments, **options))

    def stream_unary(self, *arguments: Any, **options: Any) -> Any:  # noqa: D102
        return _Method(self, lambda channel: channel.stream_unary(*arguments, **options))

    def stream_stream(self, *arguments: Any, **options: Any) -> Any:  # noqa: D102
        return _StreamMethod(self, lambda channel: channel.stream_stream(*arguments, **options))

    def subscribe(self, *arguments: Any, **options: Any) -> None:
        """Follow the state of the channel that is the newest at this time."""
        self._newest.channel.subscribe(*arguments, **options)

    def unsubscribe(self, callback: Callable[..., Any]) -> None:
        """End that."""
        self._newest.channel.unsubscribe(callback)

    def close(self) -> None:
        """End every call, on older channels as well."""
        with self._lock:
            self._closed = True
            every, self._older = [*self._older, self._newest], []
        for opened in every:
            opened.channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Method:
    """A method of the contract, made anew on each channel: with one answer, waited for or not."""

    def __init__(self, channel: RenewingChannel, make: Callable[[grpc.Channel], Any]) -> None:
        self._channel, self._make = channel, make
        self._made: tuple[_Opened | None, Any] = (None, None)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._to_its_end(lambda method: method(*arguments, **options))

    def with_call(self, *arguments: Any, **options: Any) -> Any:
        # What an interceptor in front of the channel calls.
        return self._to_its_end(lambda method: method.with_call(*arguments, **options))

    def future(self, *arguments: Any, **options: Any) -> Any:
        return self._under_way(lambda method: method.future(*arguments, **options))

    def _to_its_end(self, make: Callable[[Any], Any]) -> Any:
        opened = self._channel.begin_call()
        try:
            return make(self._on(opened))
        finally:
            self._channel.end_call(opened)

    def _under_way(self, start: Callable[[Any], Any]) -> Any:
        opened = self._channel.begin_call()
        try:
            call = start(self._on(opened))
        except BaseException:
            self._channel.end_call(opened)
            raise
        if not call.add_callback(lambda: self._channel.end_call(opened)):
            self._channel.end_call(opened)  # it is done already
        return call

    def _on(self, opened: _Opened) -> Any:
        on, method = self._made
        if on is not opened:
            method = self._make(opened.channel)
            self._made = opened, method
        return method


class _StreamMethod(_Method):
    """A method with any number of answers."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._under_way(lambda method: method(*arguments, **options))
