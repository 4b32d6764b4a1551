"""The calls of one channel: deadlines, idle limits, and errors that name the address."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import grpc

from lipt.common.errors import LiptError, NotACoordinatorError, UnreachableError
from lipt.common.rpc.channel import open_channel
from lipt.common.rpc.status import from_rpc_error
from lipt.common.rpc.tls import TlsFiles
from lipt.trainer.idle import IdleLimit
from lipt.v1 import blob_pb2_grpc, info_pb2_grpc, run_pb2_grpc, subset_pb2_grpc

# A coordinator answers within milliseconds; this is for one that is swapping.
CONTROL_SECONDS = 30.0

# Creating a run checks it against the data and builds the model once.
CREATE_SECONDS = 120.0

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class Connection:
    """One channel to one address, and the stubs on it.

    Raises:
        ConfigError: `address` is not host:port.
    """

    def __init__(self, address: str, tls: TlsFiles | None) -> None:
        self.address = address
        self._tls = tls
        self._channel = open_channel(address, tls)
        self.runs = run_pb2_grpc.RunServiceStub(self._channel)
        self.subsets = subset_pb2_grpc.SubsetServiceStub(self._channel)
        self.blobs = blob_pb2_grpc.BlobServiceStub(self._channel)
        self.info = info_pb2_grpc.InfoServiceStub(self._channel)

    def close(self) -> None:
        """End the channel and every call on it."""
        self._channel.close()

    def unary(
        self,
        method: grpc.UnaryUnaryMultiCallable[RequestT, ResponseT],
        request: RequestT,
        *,
        seconds: float = CONTROL_SECONDS,
    ) -> ResponseT:
        """One request, one answer, within `seconds`.

        Raises:
            LiptError: what the coordinator refused with, UnreachableError or
                NotACoordinatorError.
        """
        try:
            return method(request, timeout=seconds)
        except grpc.RpcError as error:
            raise self.explain(error) from None

    def stream(
        self,
        method: grpc.UnaryStreamMultiCallable[RequestT, ResponseT],
        request: RequestT,
        *,
        idle_seconds: float,
    ) -> Iterator[ResponseT]:
        """One request, any number of answers, each at most `idle_seconds` after the last.

        Raises:
            LiptError: as `unary`.
        """
        call = method(request)
        with IdleLimit(call, idle_seconds) as limit:
            try:
                while True:
                    limit.waiting()
                    response = next(call, None)
                    limit.heard()
                    if response is None:
                        return
                    yield response
            except grpc.RpcError as error:
                if limit.expired:
                    raise UnreachableError(
                        f"the coordinator at {self.address} has sent nothing for "
                        f"{idle_seconds:g} s. See its log, and the network in between."
                    ) from None
                raise self.explain(error) from None
            finally:
                call.cancel()

    @contextmanager
    def naming_address(self) -> Iterator[None]:
        """Adds the address to what a transfer of blobs says of a lost connection."""
        try:
            yield
        except UnreachableError as error:
            raise UnreachableError(f"{self.address}: {error}") from None

    def explain(self, error: grpc.RpcError) -> LiptError:
        """What a failed call means, with the address and what to check."""
        known = from_rpc_error(error)
        code = error.code() if isinstance(error, grpc.Call) else None
        if type(known) is LiptError and code is grpc.StatusCode.UNIMPLEMENTED:
            return NotACoordinatorError(
                f"what answers at {self.address} is not a LiPT coordinator of this version: it "
                "does not know the call. Check host and port; lipt-coordinator prints them when "
                "it starts."
            )
        if isinstance(known, UnreachableError):
            return self._unreachable(error, code)
        return known

    def _unreachable(self, error: grpc.RpcError, code: grpc.StatusCode | None) -> UnreachableError:
        details = error.details() if isinstance(error, grpc.Call) else ""
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return UnreachableError(
                f"the coordinator at {self.address} did not answer in time. Check that the "
                "address is right, that no firewall drops the port, and the coordinator's log."
            )
        security = "with TLS" if self._tls else "without TLS"
        return UnreachableError(
            f"no coordinator answers at {self.address}, asked {security} ({details}). Check that "
            "lipt-coordinator runs there, that host and port are right, and that both sides use "
            "TLS or neither does; 'lipt doctor' looks closer."
        )


class Patience:
    """How often and how long a broken stream is tried again.

    A coordinator that never answered is not waited for: its address is more
    likely to be wrong than its process to be restarting.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._attempts = 0
        self._since: float | None = None
        self._connected = False

    def heard(self) -> None:
        """A message came: the next interruption starts with full patience."""
        self._connected = True
        self._attempts = 0
        self._since = None

    def hearing(self, messages: Iterable[ResponseT]) -> Iterator[ResponseT]:
        """`messages`, each noted as heard."""
        for message in messages:
            self.heard()
            yield message

    def pause(self, error: LiptError) -> None:
        """Wait before the next attempt.

        Raises:
            LiptError: `error` itself, when there is no point in another attempt.
        """
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not self._connected or now - self._since >= self._limit_seconds:
            raise error
        time.sleep(pause_seconds(self._attempts))
        self._attempts += 1


def pause_seconds(attempts: int) -> float:
    """The pause after so many failed attempts: doubling, up to some seconds."""
    return min(_FIRST_PAUSE_SECONDS * 2.0 ** min(attempts, 10), _LONGEST_PAUSE_SECONDS)
