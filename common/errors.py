"""Errors: each message states the values and the remedy.

Families are only for `except`; each reason has its own class. The reason travels in
`google.rpc.ErrorInfo` (domain "lipt"), so that the peer raises the same class. `retryable` is
whether the same call may succeed later.
"""

from __future__ import annotations

from typing import ClassVar, cast

import grpc
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from lipt.common.states import Divergence
from lipt.common.text import encodable, printable

_DOMAIN = "lipt"
# A status travels twice in metadata, where a byte takes up to three; peers refuse 8 KiB.
_MAX_MESSAGE_BYTES = 1500


class LiptError(Exception):
    """Base of all errors of this package; itself an unforeseen one."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    reason: ClassVar[str] = "INTERNAL"
    # Unknown failures, a proxy's status or a newer peer's reason may be temporary.
    retryable: ClassVar[bool] = True
    # Pause requested by the refusing side.
    retry_after_seconds: float | None = None

    def __init_subclass__(
        cls, *, reason: str = "", code: str = "", retryable: bool | None = None
    ) -> None:
        super().__init_subclass__()
        if reason:
            cls.reason = reason
        if code:
            cls.code = grpc.StatusCode[code]
        if retryable is not None:
            cls.retryable = retryable

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        # Of a file's name there may be bytes that no terminal, log or peer takes.
        self.message = encodable(message)
        super().__init__(self.message)
        self.retry_after_seconds = retry_after_seconds

    @property
    def problem(self) -> str:
        """The first sentence, without the remedy."""
        return self.message.partition(". ")[0].removesuffix(".")


class RequestError(LiptError, code="INVALID_ARGUMENT", retryable=False):
    """Refused until the request, a flag or an installation is changed."""


class ConfigError(RequestError, reason="INVALID_CONFIG"):
    """A configuration value, alone or with the data, cannot be used."""


class BudgetError(RequestError, reason="INVALID_BUDGET"):
    """The requested subset cannot be taken from the data set."""


class OverLimitError(RequestError, reason="OVER_LIMIT"):
    """The request costs more than this process's limits; the message has the figures."""


class OutOfMemoryError(RequestError, reason="OUT_OF_MEMORY", code="RESOURCE_EXHAUSTED"):
    """A computation needed more memory than its limit or than was free."""


class UnknownNameError(RequestError, reason="UNKNOWN_NAME"):
    """A strategy, model or data set that does not exist; the message lists those that do."""


class StrategyOptionError(RequestError, reason="INVALID_OPTION"):
    """A strategy's option does not exist or has a value that it does not take."""


class ProxyError(RequestError, reason="INVALID_PROXY"):
    """A proxy model that does not exist or is unavailable for this request."""


class InvalidRequestError(RequestError, reason="INVALID_REQUEST"):
    """A request whose fields are missing or out of range."""


class BlobTooLargeError(RequestError, reason="BLOB_TOO_LARGE", code="RESOURCE_EXHAUSTED"):
    """A blob, message or tensor count over the limit, by its declared size."""


class FactoryNotAllowedError(RequestError, reason="FACTORY_NOT_ALLOWED", code="PERMISSION_DENIED"):
    """A remote peer named a factory in a module that this process's flags do not allow."""


class UnauthenticatedError(RequestError, reason="UNAUTHENTICATED", code="UNAUTHENTICATED"):
    """The caller's token is missing, unknown, revoked or expired."""


class PermissionDeniedError(RequestError, reason="PERMISSION_DENIED", code="PERMISSION_DENIED"):
    """The caller is known but lacks the role for this call."""


class ForeignWorkerError(RequestError, reason="NOT_THIS_WORKER", code="PERMISSION_DENIED"):
    """A call under the id of another worker."""


class MissingExtraError(RequestError, reason="MISSING_EXTRA", code="FAILED_PRECONDITION"):
    """An optional dependency is not installed; the message has the command that installs it."""


class IncompatibleProtocolError(
    RequestError, reason="INCOMPATIBLE_PROTOCOL", code="FAILED_PRECONDITION"
):
    """Two peers whose protocol majors differ."""


class InputError(LiptError, code="INVALID_ARGUMENT", retryable=False):
    """Data, weights, features or a learner that cannot be used."""


class DataError(InputError, reason="BAD_DATA", code="FAILED_PRECONDITION"):
    """The data set is missing, empty, or holds an example that cannot be read."""


class OtherDataError(DataError, reason="OTHER_DATA"):
    """The data differs from the run's; the run continues when its own data is back."""


class SignalsError(InputError, reason="BAD_SIGNALS", code="FAILED_PRECONDITION"):
    """The model's outputs on the data are not finite, so nothing can be selected on them."""


class StrategyError(InputError, reason="BAD_STRATEGY", code="FAILED_PRECONDITION"):
    """A strategy's function returned what is no selection of the budget."""


class WeightsError(InputError, reason="INVALID_WEIGHTS"):
    """Weights that do not fit the model, or a file that is not safetensors."""


class FeaturesError(InputError, reason="INVALID_FEATURES"):
    """A user's own features do not fit the data set, or the file is not a feature file."""


class ProbabilitiesError(InputError, reason="INVALID_PROBABILITIES"):
    """A user's own class probabilities do not fit the data set, or are no probabilities."""


class MarksError(InputError, reason="INVALID_MARKS"):
    """A file of marked labels is damaged, or belongs to other data."""


class LearnerRejectedError(InputError, reason="LEARNER_REJECTED"):
    """A committed learner that is unfit for the soup."""


class DivergedError(InputError, reason="DIVERGED", code="FAILED_PRECONDITION"):
    """A learner's or main training's loss or weights are no longer finite, so unusable."""

    # Of a learner; set where it was trained.
    divergence: Divergence


class LifecycleError(LiptError, code="FAILED_PRECONDITION", retryable=False):
    """A run, worker, lease or blob is gone, over, or not there yet."""


class UnknownRunError(LifecycleError, reason="UNKNOWN_RUN", code="NOT_FOUND"):
    """No run has that id or name."""


class UnreadableRunError(LifecycleError, reason="UNREADABLE_RUN", code="DATA_LOSS"):
    """The run's record in the database is damaged; the other runs are not affected."""


class RunNotReadyError(LifecycleError, reason="RUN_NOT_READY"):
    """The run has not reached the stage that the request needs, or ended before it."""


class RunFailedError(LifecycleError, reason="RUN_FAILED"):
    """The run cannot continue; the message has its recorded error."""


class UnknownWorkerError(LifecycleError, reason="UNKNOWN_WORKER", code="NOT_FOUND"):
    """The coordinator does not know the worker (it was restarted): register again."""


class StaleLeaseError(LifecycleError, reason="STALE_LEASE"):
    """The assignment's lease is over; the result is not used."""


class ForeignBlobError(LifecycleError, reason="NOT_ITS_BLOB", code="PERMISSION_DENIED"):
    """A worker requested or sent a blob outside its leased learner."""


class LearnerStoppedError(LifecycleError, reason="LEARNER_STOPPED", code="CANCELLED"):
    """The learner was stopped; its weights are unusable."""


class UnknownBlobError(LifecycleError, reason="UNKNOWN_BLOB", code="NOT_FOUND"):
    """Nothing is stored under that digest."""


class UnknownTokenError(LifecycleError, reason="UNKNOWN_TOKEN", code="NOT_FOUND"):
    """No token has that id."""


class ProcessEndedError(LifecycleError, reason="PROCESS_ENDED", code="INTERNAL"):
    """A process that a command needs has ended; the message has its status or last lines."""


class TransferError(LiptError, code="DATA_LOSS", retryable=True):
    """Bytes came damaged or out of order: sending them again helps."""


class CorruptBlobError(TransferError, reason="CORRUPT_BLOB"):
    """A blob's bytes differ from their SHA-256 digest."""


class SubsetError(TransferError, reason="BAD_SUBSET"):
    """A subset whose digest does not match, or a file that is not a subset."""


class DiagnosisError(TransferError, reason="BAD_DIAGNOSIS"):
    """A diagnosis whose file, columns and findings do not match."""


class WrongOffsetError(TransferError, reason="WRONG_OFFSET", code="FAILED_PRECONDITION"):
    """A chunk does not continue the stored bytes; get the status and resume there."""


class UploadInProgressError(TransferError, reason="UPLOAD_IN_PROGRESS", code="ABORTED"):
    """Another process is writing the same blob; try again later."""


class UnavailableError(LiptError, retryable=True):
    """The peer is unavailable, or its disk or child process failed: waiting helps."""


class UnreachableError(UnavailableError, reason="UNREACHABLE", code="UNAVAILABLE"):
    """The coordinator does not answer."""


class ForkedError(UnreachableError, reason="FORKED"):
    """The process forked during a call, which ended it; retry at once."""


class NotACoordinatorError(UnavailableError, reason="NOT_A_COORDINATOR", code="UNIMPLEMENTED"):
    """The address belongs to another kind of gRPC server."""


class StateError(UnavailableError, reason="BAD_STATE"):
    """The state directory cannot be used."""


class DiskFullError(StateError, reason="DISK_FULL", code="RESOURCE_EXHAUSTED"):
    """The disk of the state directory, or of a backup, has no space left."""


class ComputeError(UnavailableError, reason="COMPUTE_FAILED"):
    """The compute process ended without an answer."""


class QueueFullError(UnavailableError, reason="QUEUE_FULL", code="RESOURCE_EXHAUSTED"):
    """The queue of computations is full; the error has the time to wait."""


class StorageFullError(UnavailableError, reason="STORAGE_FULL", code="RESOURCE_EXHAUSTED"):
    """One peer, or all together, reached the coordinator's upload limit."""


class TooManyCallsError(UnavailableError, reason="TOO_MANY_CALLS", code="RESOURCE_EXHAUSTED"):
    """A peer exceeds its call rate or concurrency; the error has the time to wait."""


class OverloadedError(TooManyCallsError, reason="OVERLOADED"):
    """The coordinator has too many calls of all peers together; the error has the time to wait."""


def error_classes(cls: type[LiptError] = LiptError) -> list[type[LiptError]]:
    return [cls, *(below for sub in cls.__subclasses__() for below in error_classes(sub))]


def error_class(reason: str) -> type[LiptError]:
    own = {cls.reason: cls for cls in error_classes() if "reason" in vars(cls)}
    return own.get(reason, LiptError)


def to_status(error: LiptError) -> status_pb2.Status:
    code = code_pb2.Code.Value(error.code.name)
    status = status_pb2.Status(code=code, message=_shortened(str(error)))
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=_DOMAIN))
    if error.retry_after_seconds is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(1000 * error.retry_after_seconds))
        status.details.add().Pack(retry)
    return status


def _shortened(sentence: str) -> str:
    content = sentence.encode(errors="replace")
    if len(content) > _MAX_MESSAGE_BYTES:
        half = _MAX_MESSAGE_BYTES // 2
        content = content[:half] + b" ... " + content[-half:]
    return content.decode(errors="ignore")


def from_rpc_error(error: grpc.RpcError) -> LiptError:
    call = cast("grpc.Call", error)
    code, details = call.code(), printable(call.details() or "")
    try:
        status = cast("status_pb2.Status | None", rpc_status.from_call(call))
    except ValueError:  # details that contradict the code: not ours
        status = None
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    for packed in status.details if status else ():
        # The detail is one of the two.
        _ = packed.Unpack(info) or packed.Unpack(retry)
    if info.domain == _DOMAIN:
        after = retry.retry_delay.ToMilliseconds() / 1000
        return error_class(info.reason)(details, retry_after_seconds=after or None)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return UnreachableError(f"the coordinator does not answer ({details}).")
    # Cancelled by the peer: those that cancel a call themselves know it.
    if code is grpc.StatusCode.CANCELLED:
        return UnreachableError(
            "the coordinator ended the call: it is stopping, or has too many calls. Call again."
        )
    return LiptError(f"{code.name if code else 'UNKNOWN'}: {details}")
