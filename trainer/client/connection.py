"""Connection: one gRPC channel with deadlines, idle limits and reconnection.

gRPC's threads do not survive a fork, but its locks and sockets do, so a fork during a call can
deadlock the child. Every channel closes before a fork, and the next call opens another.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import grpc

from lipt.common.access.tls import TlsFiles
from lipt.common.access.tokens import TokenSource
from lipt.common.backoff import Backoff, RetryPolicy, retry
from lipt.common.errors import (
    ForkedError,
    LiptError,
    NotACoordinatorError,
    QueueFullError,
    TooManyCallsError,
    UnreachableError,
    from_rpc_error,
)
from lipt.common.rpc.channel import IdleWatchdog, open_channel
from lipt.common.text import printable
from lipt.v1 import (
    access_pb2_grpc,
    blob_pb2_grpc,
    diagnosis_pb2_grpc,
    info_pb2,
    info_pb2_grpc,
    mixture_pb2_grpc,
    run_pb2_grpc,
    subset_pb2_grpc,
)

# Limit for interrupted calls to release the channel; a stream of the forking thread itself cannot.
_UNWIND_SECONDS = 2.0

# Time for gRPC's threads to release the buffers of interrupted calls. They need the GIL, which
# `fork` holds while gRPC's own handler waits up to a minute for these threads.
_RELEASE_SECONDS = 0.05

_channels: weakref.WeakSet[ForkAwareChannel] = weakref.WeakSet()

# References that keep a child from running destructors of the parent's channels.
_of_the_parent: list[object] = []


class ForkAwareChannel:
    """A channel that closes before a fork or by `close`; `held` opens it again."""

    def __init__(self, open_channel: Callable[[], Any]) -> None:
        self._open = open_channel
        self._changed = threading.Condition()
        self._channel: Any = open_channel()
        # One entry per holder.
        self._held: list[Any] = []
        self._num_forks, self._forking = 0, False
        _channels.add(self)
        _watch_forks()

    @contextmanager
    def held(self) -> Iterator[Any]:
        """Keep the channel open during the block; ForkedError if a fork closed it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            if self._channel is None:
                self._channel = self._open()
            channel, num_forks, changed = self._channel, self._num_forks, self._changed
            self._held.append(channel)
        try:
            yield channel
        except Exception as error:
            # Any error: a closed channel raises ValueError, an interrupted call is cancelled.
            if self._num_forks != num_forks:
                raise ForkedError("this process forked during a call. Call again.") from error
            raise
        finally:
            if changed is self._changed:  # not the child of a fork
                with changed:
                    self._held.remove(channel)
                    changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._end()

    def before_fork(self) -> None:
        """Close the channel, wait for its holders, and block new ones until the fork is over."""
        with self._changed:
            self._forking = True
            self._num_forks += 1
            ended = self._end()
            self._changed.wait_for(lambda: not self._held, _UNWIND_SECONDS)
        if ended:
            time.sleep(_RELEASE_SECONDS)

    def in_parent(self) -> None:
        with self._changed:
            self._forking = False
            self._changed.notify_all()

    def in_child(self) -> None:
        _of_the_parent.append(self._held)
        self._changed = threading.Condition()
        self._held, self._forking = [], False

    def _end(self) -> bool:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        return channel is not None


@functools.cache
def _watch_forks() -> None:
    """Register once, with the first channel: it cannot be undone."""

    def each(act: Callable[[ForkAwareChannel], None]) -> Callable[[], object]:
        def on_fork() -> None:
            for channel in list(_channels):
                act(channel)

        return on_fork

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=each(ForkAwareChannel.before_fork),
            after_in_parent=each(ForkAwareChannel.in_parent),
            after_in_child=each(ForkAwareChannel.in_child),
        )


# For most calls; for creating a run, which builds the model; for weights, perhaps recomputed.
CONTROL_SECONDS, CREATE_SECONDS, RESTORE_SECONDS = 30.0, 120.0, 600.0

# gRPC's messages about peers that speak another protocol; the second for HTTP/1 before 1.76.
_NOT_GRPC = ("Failed parsing HTTP/2", "Trying to connect an http1.x server")

_INTERRUPTIONS = (UnreachableError, QueueFullError, TooManyCallsError)
_BACKOFF = Backoff(first_seconds=0.2, max_seconds=5.0)

MessageT = TypeVar("MessageT")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
ResultT = TypeVar("ResultT")


class Stubs:
    def __init__(self, channel: grpc.Channel) -> None:
        self.runs = run_pb2_grpc.RunServiceStub(channel)
        self.subsets = subset_pb2_grpc.SubsetServiceStub(channel)
        self.diagnoses = diagnosis_pb2_grpc.DiagnosisServiceStub(channel)
        self.mixtures = mixture_pb2_grpc.MixtureServiceStub(channel)
        self.blobs = blob_pb2_grpc.BlobServiceStub(channel)
        self.access = access_pb2_grpc.AccessServiceStub(channel)
        self.info = info_pb2_grpc.InfoServiceStub(channel)
        self.close = channel.close


class Connection:
    """The services at one address; `unary` and `transfer` repeat calls that a fork interrupts."""

    def __init__(
        self,
        address: str,
        tls: TlsFiles | None,
        token: TokenSource | None = None,
        *,
        reconnect_seconds: float,
    ) -> None:
        self.address = address
        self.contact = Contact(address)
        self._tls, self._reconnect_seconds = tls, reconnect_seconds
        self._channel = ForkAwareChannel(lambda: Stubs(open_channel(address, tls, token)))

    def close(self) -> None:
        self._channel.close()

    def unary(
        self,
        method: Callable[[Stubs], grpc.UnaryUnaryMultiCallable[RequestT, ResponseT]],
        request: RequestT,
        *,
        seconds: float = CONTROL_SECONDS,
    ) -> ResponseT:
        """Call a unary method within `seconds`; repeat it later where calls are limited."""

        def attempt() -> ResponseT:
            try:
                return self._whole(lambda stubs: method(stubs)(request, timeout=seconds))
            except grpc.RpcError as error:
                raise self.explain(error) from None

        return retry(attempt, on=(TooManyCallsError,), policy=RetryPolicy())

    def reach(self, seconds: float, on_pause: Callable[[str], object]) -> None:
        """Wait up to `seconds` for any answer."""
        reconnection = Reconnection(seconds, expected=True, on_pause=on_pause)
        request, timeout = info_pb2.GetInfoRequest(), min(CONTROL_SECONDS, max(seconds, 1.0))
        while True:
            try:
                self.unary(lambda of: of.info.GetInfo, request, seconds=timeout)
            except UnreachableError as error:
                reconnection.pause(error)
            except LiptError:
                return
            else:
                return

    def stream(
        self,
        method: Callable[[Stubs], grpc.UnaryStreamMultiCallable[RequestT, ResponseT]],
        request: RequestT,
        *,
        idle_seconds: float,
    ) -> Generator[ResponseT]:
        """Yield a stream's messages, each at most `idle_seconds` after the last."""
        with self._channel.held() as stubs:
            call = method(stubs)(request)
            watchdog = IdleWatchdog(idle_seconds)
            try:
                with watchdog.over(call):
                    yield from watchdog.messages(call)
            except grpc.RpcError as error:
                if watchdog.expired:
                    raise UnreachableError(
                        f"the coordinator at {self.address} has sent nothing for "
                        f"{idle_seconds:g} s. See its log, and the network in between."
                    ) from None
                raise self.explain(error) from None

    def reconnection(self, on_pause: Callable[[str], object] = lambda _: None) -> Reconnection:
        """Retries of a stream that the connection's contact follows."""
        return Reconnection(self._reconnect_seconds, contact=self.contact, on_pause=on_pause)

    def transfer(self, act: Callable[[blob_pb2_grpc.BlobServiceStub], ResultT]) -> ResultT:
        """Transfer blobs by `act`; adds the address to connection errors."""
        try:
            return self._whole(lambda stubs: act(stubs.blobs))
        except UnreachableError as error:
            raise UnreachableError(f"{self.address}: {error}") from None

    def _whole(self, act: Callable[[Stubs], ResultT]) -> ResultT:
        while True:
            try:
                with self._channel.held() as stubs:
                    return act(stubs)
            except ForkedError:
                continue

    def explain(self, error: grpc.RpcError) -> LiptError:
        known, code, details = from_rpc_error(error), None, ""
        if isinstance(error, grpc.Call):
            code, details = error.code(), printable(error.details() or "")
        away = isinstance(known, UnreachableError)
        other = ""
        if type(known) is LiptError and code is grpc.StatusCode.UNIMPLEMENTED:
            other = " of this version"
        elif away and any(words in details for words in _NOT_GRPC):
            other = f": it does not speak gRPC ({details})"
        if other:
            return NotACoordinatorError(
                f"what answers at {self.address} is not a LiPT coordinator{other}. Check host and "
                "port; lipt-coordinator prints them when it starts."
            )
        if not away or code is grpc.StatusCode.CANCELLED:
            return known
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return UnreachableError(
                f"the coordinator at {self.address} did not answer in time. Check that the "
                "address is right, that no firewall drops the port, and the coordinator's log."
            )
        security = "with TLS" if self._tls else "without TLS"
        why = self._tls.closing_hint(details) if self._tls else ""
        return UnreachableError(
            f"no coordinator answers at {self.address}, asked {security} ({details}). Check that "
            "lipt-coordinator runs there, and that both sides use TLS or neither does."
            f"{why and ' '}{why}"
        )


# On streams of runs and of answers a coordinator sends a message every 5 s.
_QUIET_SECONDS = 12.0


@dataclass(frozen=True)
class Silence:
    """A coordinator that does not answer; `since` is the time of its last message."""

    address: str
    since: datetime

    def __str__(self) -> str:
        return f"coordinator {self.address} does not answer since {self.since:%H:%M:%S}; waiting"


def silent_seconds(now: float, heard_at: float | None, *, is_interrupted: bool) -> float | None:
    """Seconds since the last message at `heard_at`; None while the coordinator answers.

    `heard_at` is None where nothing is followed.
    """
    if heard_at is None or (not is_interrupted and now - heard_at < _QUIET_SECONDS):
        return None
    return now - heard_at


class Contact:
    """The last message of the stream that a client follows; may be read in any thread."""

    def __init__(self, address: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._address, self._clock = address, clock
        self._heard_at: float | None = None
        self._is_interrupted = False

    def hear(self) -> None:
        """Note a message, or the beginning of a stream."""
        self._heard_at, self._is_interrupted = self._clock(), False

    def interrupt(self) -> None:
        self._is_interrupted = True

    def end(self) -> None:
        self._heard_at = None

    def silence(self) -> Silence | None:
        seconds = silent_seconds(self._clock(), self._heard_at, is_interrupted=self._is_interrupted)
        if seconds is None:
            return None
        return Silence(self._address, datetime.now().astimezone() - timedelta(seconds=seconds))


class Reconnection:
    """Limits the retries of one stream to `limit_seconds` since the last message.

    A coordinator that never answered is retried only if `expected`: its address may be wrong. A
    busy coordinator sets the pause itself. `on_pause` receives a message before each pause.
    `contact` is told of messages and interruptions.
    """

    def __init__(
        self,
        limit_seconds: float,
        *,
        expected: bool = False,
        contact: Contact | None = None,
        on_pause: Callable[[str], object] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._limit_seconds, self._on_pause = limit_seconds, on_pause
        self._contact = contact or Contact("")
        self._clock, self._sleep = clock, sleep
        self._connected = expected
        self._num_failures, self._since = 0, 0.0

    def resumed(self, open_stream: Callable[[], Iterable[MessageT]]) -> Generator[MessageT]:
        """Yield a stream's messages, without end: it is opened again after an interruption."""
        self._contact.hear()
        try:
            while True:
                try:
                    for message in open_stream():
                        self._connected, self._num_failures = True, 0
                        self._contact.hear()
                        yield message
                    # A coordinator ends its streams normally when it shuts down.
                    raise UnreachableError("the coordinator has ended the stream.")
                except _INTERRUPTIONS as error:
                    self.pause(error)
        finally:
            self._contact.end()

    def pause(self, error: UnreachableError | QueueFullError | TooManyCallsError) -> None:
        """Wait before the next attempt, except after a fork; raise `error` at the limit."""
        if isinstance(error, ForkedError):
            return
        if not self._num_failures:
            self._since = self._clock()
        self._num_failures += 1
        answered = self._connected or not isinstance(error, UnreachableError)
        left = self._since + self._limit_seconds - self._clock()
        if not answered or left <= 0.0:
            raise error
        # A busy coordinator has answered.
        if isinstance(error, UnreachableError):
            self._contact.interrupt()
        else:
            self._contact.hear()
        asked = error.retry_after_seconds or 0.0
        seconds = max(min(_BACKOFF.pause_seconds(self._num_failures), left), asked)
        self._on_pause(f"{error.problem}; asking again in {seconds:.1f} s")
        self._sleep(seconds)
