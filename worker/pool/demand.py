"""Demand: what the coordinator has for workers, asked for and waited for."""

from __future__ import annotations

import threading
from typing import Any

import grpc

from lipt.common.errors import IncompatibleProtocolError
from lipt.common.rpc.messages import PROTOCOL_MAJOR
from lipt.common.rpc.status import from_rpc_error
from lipt.v1 import info_pb2, info_pb2_grpc, worker_pb2, worker_pb2_grpc
from lipt.worker.pool.scaling import Demand

_CALL_SECONDS = 20.0


class DemandSource:
    """A pool's calls to its coordinator."""

    def __init__(self, channel: grpc.Channel, *, has_data: bool = False) -> None:
        """Ask over a channel.

        Args:
            channel: to the coordinator.
            has_data: whether the pool's workers have the data: ranges count for no others.
        """
        self._has_data = has_data
        # Whatever counts here: the coordinator is told what it has said.
        self._num_ranges = 0
        self._workers = worker_pb2_grpc.WorkerServiceStub(channel)
        self._info = info_pb2_grpc.InfoServiceStub(channel)
        self._waiting: grpc.Future[Any] | None = None
        self._interrupted = threading.Event()

    def require_same_protocol(self) -> None:
        """See that the coordinator speaks this protocol.

        Raises:
            IncompatibleProtocolError: it speaks another.
            LiptError: it cannot be asked.
        """
        try:
            info = self._info.GetInfo(info_pb2.GetInfoRequest(), timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        if info.protocol.major != PROTOCOL_MAJOR:
            raise IncompatibleProtocolError(
                f"the coordinator speaks protocol {info.protocol.major}, this pool "
                f"{PROTOCOL_MAJOR}. Install the same lipt on both."
            )

    def wait(self, known: Demand | None, *, wait_seconds: float) -> Demand:
        """The demand as soon as it is not `known`, at the time-out, or when interrupted.

        Raises:
            LiptError: the coordinator does not answer, or refuses to.
        """
        request = worker_pb2.GetDemandRequest(wait_seconds=wait_seconds)
        if known is not None:
            request.known.CopyFrom(
                worker_pb2.GetDemandResponse(
                    num_queued=known.num_queued,
                    num_leased=known.num_leased,
                    num_coming=known.num_coming,
                    num_ranges=self._num_ranges,
                )
            )
        waiting = self._workers.GetDemand.future(request, timeout=wait_seconds + _CALL_SECONDS)
        self._waiting = waiting
        # A signal may have come while the call was being made.
        if self._interrupted.is_set():
            waiting.cancel()
        try:
            answer = waiting.result()
        except grpc.FutureCancelledError:
            return known or Demand()
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        finally:
            self._waiting = None
        self._num_ranges = answer.num_ranges
        num_ranges = answer.num_ranges if self._has_data else 0
        return Demand(answer.num_queued, answer.num_leased, answer.num_coming, num_ranges)

    def interrupt(self) -> None:
        """End a wait now, and every later one; may be called in a signal handler."""
        self._interrupted.set()
        waiting = self._waiting
        if waiting is not None:
            waiting.cancel()
