"""Relay: stands between a client and a coordinator, keeps the requests, and breaks calls on order.

It forwards every call of the contract to the real coordinator, and knows the messages by their
descriptors alone. A fault changes the answers of one call: it takes the real ones, which are asked
for when the first of them is read, and gives those that the client gets.

    relay.next("GetSubset", cut(after=1))          one message, then the connection breaks
    relay.every("GetInfo", change(older))          each answer as `older` has changed it
    relay.next("WatchRun", answer(first, second))  made-up messages; the coordinator is not asked
"""

import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from lipt.common.access.local import LocalTarget
from tests.rpcs import contract_methods, path_of

# Over any deadline of a client's.
_LONGEST_SECONDS = 86_400.0

Fault = Callable[[Iterator[Any]], Iterator[Any]]


class RefusalError(Exception):
    def __init__(self, status: Any) -> None:
        super().__init__(status.details)
        self.status = status


class SilenceError(Exception):
    """The call goes on, and nothing comes any more."""


def refuse(
    code: grpc.StatusCode, reason: str, message: str, *, retry_after_seconds: float = 0.0
) -> Fault:
    info, retry = any_pb2.Any(), any_pb2.Any()
    info.Pack(error_details_pb2.ErrorInfo(reason=reason, domain="lipt"))
    delay = duration_pb2.Duration(nanos=round(1e9 * retry_after_seconds))
    retry.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    details = [info, retry] if retry_after_seconds else [info]
    return _ending(status_pb2.Status(code=code.value[0], message=message, details=details))


def cut(after: int = 0) -> Fault:
    code = grpc.StatusCode.UNAVAILABLE.value[0]
    return _ending(status_pb2.Status(code=code, message="going away"), after)


def silence(after: int = 0) -> Fault:
    def fault(answers: Iterator[Any]) -> Iterator[Any]:
        yield from itertools.islice(answers, after)
        raise SilenceError

    return fault


def change(edit: Callable[[Any], object]) -> Fault:
    """Each message as `edit` has changed it in place."""

    def edited(message: Any) -> Any:
        edit(message)
        return message

    return lambda answers: map(edited, answers)


def before(*messages: Any) -> Fault:
    return lambda answers: itertools.chain(messages, answers)


def answer(*messages: Any, then: Fault | None = None) -> Fault:
    """These messages in place of the real ones, and then what `then` does."""

    def fault(answers: Iterator[Any]) -> Iterator[Any]:
        del answers
        yield from messages
        if then is not None:
            yield from then(iter(()))

    return fault


def _ending(status: Any, after: int = 0) -> Fault:
    def fault(answers: Iterator[Any]) -> Iterator[Any]:
        yield from itertools.islice(answers, after)
        raise RefusalError(rpc_status.to_status(status))

    return fault


@dataclass(frozen=True)
class Call:
    request: Any
    authorization: str | None
    ended: threading.Event = field(default_factory=threading.Event)


class Relay(grpc.GenericRpcHandler):
    """Forwards the calls of a `with` block to the coordinator at `target`, in their order."""

    def __init__(self, target: str, *, port: int = 0) -> None:
        self.calls: list[Call] = []
        self._channel = grpc.insecure_channel(LocalTarget(target).current())
        self._methods = {path_of(method): method for method in contract_methods()}
        self._next: dict[str, deque[Fault]] = defaultdict(deque)
        self._every: dict[str, Fault] = {}
        self._server = grpc.server(ThreadPoolExecutor(16), handlers=[self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"

    def next(self, method: str, *faults: Fault) -> None:
        """Each of the next calls of a method meets one of these, in their order."""
        self._next[method].extend(faults)

    def every(self, method: str, fault: Fault) -> None:
        """All calls of a method meet this fault, where none is left of the next ones."""
        self._every[method] = fault

    @property
    def requests(self) -> list[Any]:
        return [call.request for call in self.calls]

    def requests_of(self, kind: type[Any]) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()
        self._channel.close()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """gRPC's question for what answers a call: on the wire each is a stream of messages."""
        path = handler_call_details.method
        if (method := self._methods.get(path)) is None:
            return None
        shown: dict[str, Any] = dict(handler_call_details.invocation_metadata)
        kinds = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        ask = partial(
            self._channel.stream_stream(path, kinds[0].SerializeToString, kinds[1].FromString),
            metadata=(("authorization", value),) if (value := shown.get("authorization")) else (),
        )
        return grpc.stream_stream_rpc_method_handler(
            partial(self._forward, method.name, shown.get("authorization"), ask),
            kinds[0].FromString,
            kinds[1].SerializeToString,
        )

    def _forward(
        self,
        name: str,
        authorization: str | None,
        ask: Callable[..., Any],
        requests: Iterator[Any],
        context: Any,
    ) -> Iterator[Any]:
        call = Call(next(requests, None), authorization)
        self.calls.append(call)

        def answers() -> Iterator[Any]:
            seconds = context.time_remaining()  # of a call without a deadline, centuries
            real = ask(
                itertools.chain([call.request], requests),
                timeout=seconds if seconds < _LONGEST_SECONDS else None,
            )
            if not context.add_callback(real.cancel):
                real.cancel()
            yield from real

        queued = self._next[name]
        fault = queued.popleft() if queued else self._every.get(name, iter)
        if not context.add_callback(call.ended.set):
            call.ended.set()
        with suppress(SilenceError):
            try:
                yield from fault(answers())
            except RefusalError as refusal:
                context.abort_with_status(refusal.status)
            except grpc.RpcError as error:
                if context.is_active():
                    context.set_trailing_metadata(error.trailing_metadata())  # type: ignore[attr-defined]
                    context.abort(error.code(), error.details())  # type: ignore[attr-defined]
            return
        call.ended.wait()
