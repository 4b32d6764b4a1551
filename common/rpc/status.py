"""Errors as gRPC statuses, and statuses as errors."""

from __future__ import annotations

from typing import cast

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from lipt.common.errors import DOMAIN, LiptError, UnreachableError, error_class, revive
from lipt.common.text import printable

# A status travels as metadata, twice, a byte as up to three; peers refuse 8 KiB and more of it.
_MAX_MESSAGE_BYTES = 1500


def to_status(error: LiptError) -> status_pb2.Status:
    """The status that carries an error's code, sentence and reason."""
    details = [_packed(error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN))]
    if error.retry_after_seconds is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(1000 * error.retry_after_seconds))
        details.append(_packed(retry))
    return status_pb2.Status(
        code=code_pb2.Code.Value(error.code.name), message=_shortened(str(error)), details=details
    )


def _packed(message: Message) -> any_pb2.Any:
    detail = any_pb2.Any()
    detail.Pack(message)
    return detail


def _shortened(sentence: str) -> str:
    content = sentence.encode(errors="replace")
    if len(content) > _MAX_MESSAGE_BYTES:
        half = _MAX_MESSAGE_BYTES // 2
        content = content[:half] + b" ... " + content[-half:]
    return content.decode(errors="ignore")


def from_rpc_error(error: grpc.RpcError) -> LiptError:
    """The error that the server raised.

    Other statuses become `UnreachableError` or a plain `LiptError`.
    """
    call = cast("grpc.Call", error)
    # Whoever shows an error shows what its peer wrote.
    code, details = call.code(), printable(call.details() or "")
    status = _rich_status(call)
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for packed in status.details if status else ():
        # Whichever of the two it is.
        _ = packed.Unpack(info) or packed.Unpack(retry)
    if info.domain == DOMAIN:
        after = retry.retry_delay.ToMilliseconds() / 1000
        return revive(error_class(info.reason), details, after or None)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return UnreachableError(f"the coordinator does not answer ({details}).")
    return LiptError(f"{code.name if code else 'UNKNOWN'}: {details}")


def _rich_status(call: grpc.Call) -> status_pb2.Status | None:
    try:
        return cast("status_pb2.Status | None", rpc_status.from_call(call))
    except ValueError:  # details that contradict the code: not ours
        return None
