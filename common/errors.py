"""Errors: every refusal of the service, a sentence with the values and the remedy.

    LiptError              what nobody foresaw; the base of all others
      RequestError         refused until the request, a flag or an installation is changed
      InputError           data, weights, features or a learner that cannot be used
      LifecycleError       a run, worker, lease or blob that is gone, over, or not there yet
      TransferError        bytes that came damaged or out of order: sending them again helps
      UnavailableError     who should answer is away, or has trouble of its own: waiting helps

Families are for `except`, and are never raised themselves. Below them there is one class per
reason: it decides its gRPC status once, and `reason` travels in `google.rpc.ErrorInfo` (domain
"lipt"), so that the peer raises the same class. `retryable` says whether the same call, made
again unchanged, may succeed; it is the one definition of "transient". A loop that repeats a call
may do so after fewer errors than these, never after others.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import grpc

DOMAIN = "lipt"


class LiptError(Exception):
    """Base of everything this package raises on purpose; itself what nobody foresaw."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    reason: ClassVar[str] = "INTERNAL"
    # An incident, a proxy's status, a newer peer's reason: nothing says that it would come again.
    retryable: ClassVar[bool] = True
    # When the same call is worth making again, where whoever refused it knows.
    retry_after_seconds: float | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def problem(self) -> str:
        """The first sentence: what was wrong, without what to do."""
        return self.message.partition(". ")[0].removesuffix(".")

    def __reduce__(self) -> tuple[Any, ...]:
        # A class may build its sentence from other arguments: between processes the sentence goes.
        return revive, (type(self), self.message, self.retry_after_seconds)


def revive(
    cls: type[LiptError], message: str, retry_after_seconds: float | None = None
) -> LiptError:
    """An error of another process: its class with its finished sentence."""
    error = cls.__new__(cls)
    LiptError.__init__(error, message)
    error.retry_after_seconds = retry_after_seconds
    return error


class RequestError(LiptError):
    """It is refused until something is changed: the request, a flag, an installation."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    # The answer follows from the request alone.
    retryable = False


class ConfigError(RequestError):
    """A configuration value, alone or with the data, cannot be used."""

    reason = "INVALID_CONFIG"


class BudgetError(RequestError):
    """The requested subset cannot be taken from the data set."""

    reason = "INVALID_BUDGET"


class OverLimitError(RequestError):
    """What is asked for costs more than this process's limits; the message has the figures."""

    reason = "OVER_LIMIT"


class OutOfMemoryError(RequestError):
    """A computation needed more memory than its process may take, or than there was."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    # Made again unchanged it would only do the same damage again.
    reason = "OUT_OF_MEMORY"


class UnknownNameError(RequestError):
    """A strategy, model or data set that does not exist; the message lists those that do."""

    reason = "UNKNOWN_NAME"


class StrategyOptionError(RequestError):
    """A strategy's option does not exist or has a value that it does not take."""

    reason = "INVALID_OPTION"


class ProxyError(RequestError):
    """A proxy that does not exist, or that cannot be had on what the request is about."""

    reason = "INVALID_PROXY"


class InvalidRequestError(RequestError):
    """A request whose fields are missing or out of range."""

    reason = "INVALID_REQUEST"


class InvalidBlobNameError(RequestError):
    """A blob reference that is not a SHA-256 digest and a size."""

    reason = "INVALID_BLOB_NAME"


class BlobTooLargeError(RequestError):
    """A blob, message or tensor count over the limit, refused from what it declares."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "BLOB_TOO_LARGE"


class FactoryNotAllowedError(RequestError):
    """A remote peer named a factory in a module that this process's flags do not allow."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "FACTORY_NOT_ALLOWED"


class UnauthenticatedError(RequestError):
    """The caller shows no token, or one that is unknown, revoked or expired."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"


class PermissionDeniedError(RequestError):
    """The caller is known, and has not the role that the call takes."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class ForeignWorkerError(RequestError):
    """A call under the id of a worker that does not come from that worker."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "NOT_THIS_WORKER"


class MissingExtraError(RequestError):
    """An optional dependency is not installed; the message has the command that installs it."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "MISSING_EXTRA"

    def __init__(self, package: str, *, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs the package {package!r}. "
            f"Install it with: pip install 'lipt[{extra}]'"
        )


class IncompatibleProtocolError(RequestError):
    """Two peers whose protocol majors differ."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "INCOMPATIBLE_PROTOCOL"


class InputError(LiptError):
    """What there is to work on cannot be used: data, weights, features, a learner."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    # The same bytes, and the same computation on them, are found wanting every time.
    retryable = False


class DataError(InputError):
    """The data set is missing, empty, or holds an example that cannot be read."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "BAD_DATA"


class OtherDataError(DataError):
    """The data is whole, and another than that of the run: it goes on when its own is back."""

    reason = "OTHER_DATA"


class SignalsError(InputError):
    """The model's outputs on the data are not finite, so nothing can be selected on them."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "BAD_SIGNALS"


class WeightsError(InputError):
    """Weights that are not those of the model, or a file that is not safetensors."""

    reason = "INVALID_WEIGHTS"


class FeaturesError(InputError):
    """A user's own features do not fit the data set, or are no such file."""

    reason = "INVALID_FEATURES"


class LearnerRejectedError(InputError):
    """A committed learner that the soup must not see."""

    reason = "LEARNER_REJECTED"


class LearnerDivergedError(InputError):
    """The learner's loss or weights are no longer finite; no soup can use them."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "LEARNER_DIVERGED"


class TrainingDivergedError(InputError):
    """Main training's loss is no longer finite; its weights are worth nothing."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "TRAINING_DIVERGED"


class LifecycleError(LiptError):
    """What is asked for is gone, over, or not there yet: a run, a worker, a lease, a blob."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    # Something else has to happen first: another call, or the run's going on (`Client.wait`).
    retryable = False


class UnknownRunError(LifecycleError):
    """No run has that id or name."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "UNKNOWN_RUN"


class RunNotReadyError(LifecycleError):
    """The run has not got as far as the request needs, or ended without it."""

    reason = "RUN_NOT_READY"


class RunFailedError(LifecycleError):
    """The run cannot go on; the message is what its record says."""

    reason = "RUN_FAILED"


class UnknownWorkerError(LifecycleError):
    """The coordinator does not know the worker (it was restarted): register again."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "UNKNOWN_WORKER"


class StaleLeaseError(LifecycleError):
    """The assignment's lease is over; the result is not used."""

    reason = "STALE_LEASE"


class ForeignBlobError(LifecycleError):
    """A worker asked for, or sent, a blob that is not of the learner it has the lease of."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "NOT_ITS_BLOB"


class LearnerStoppedError(LifecycleError):
    """The learner was asked to stop, and its weights are worth nothing."""

    code = grpc.StatusCode.CANCELLED
    reason = "LEARNER_STOPPED"


class UnknownBlobError(LifecycleError):
    """Nothing is stored under that digest."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "UNKNOWN_BLOB"


class UnknownTokenError(LifecycleError):
    """No token has that id."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "UNKNOWN_TOKEN"


class ProcessEndedError(LifecycleError):
    """A process that a command needs has ended; the message says how, or has its last lines."""

    code = grpc.StatusCode.INTERNAL
    reason = "PROCESS_ENDED"


class TransferError(LiptError):
    """Bytes came damaged or out of order."""

    code = grpc.StatusCode.DATA_LOSS
    # They are whole where they come from, so they are sent again, from where the receiver is.
    retryable = True


class CorruptChunkError(TransferError):
    """A chunk's bytes differ from their CRC."""

    reason = "CORRUPT_CHUNK"


class CorruptBlobError(TransferError):
    """A blob's bytes differ from their SHA-256 digest."""

    reason = "CORRUPT_BLOB"


class SubsetError(TransferError):
    """A subset whose examples differ from its digest, or a file that does not hold one."""

    # Of a coordinator it is asked for again; a file is nobody's to ask again.
    reason = "BAD_SUBSET"


class DiagnosisError(TransferError):
    """A diagnosis whose file, columns and findings do not fit each other."""

    reason = "BAD_DIAGNOSIS"


class WrongOffsetError(TransferError):
    """A chunk does not continue what is stored; ask for the status and resume there."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "WRONG_OFFSET"


class UploadInProgressError(TransferError):
    """Another peer is sending the same blob; try again, it may be complete by then."""

    code = grpc.StatusCode.ABORTED
    reason = "UPLOAD_IN_PROGRESS"

    @classmethod
    def of(cls, name: object) -> Self:
        """About the blob of that name."""
        return cls(
            f"blob {name} is being sent by someone else. Try again: it may be complete then."
        )


class UnavailableError(LiptError):
    """The other side cannot answer now: it is away, or its disk or child process failed."""

    # A coordinator is restarted, a network mended, a disk emptied; the request is as good as ever.
    retryable = True


class UnreachableError(UnavailableError):
    """The coordinator does not answer."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "UNREACHABLE"


class ForkedError(UnreachableError):
    """This process forked during a call, which ended it; it can be made again at once."""

    reason = "FORKED"


class NotACoordinatorError(UnavailableError):
    """What answers at the address is another kind of gRPC server."""

    # A proxy may, for a coordinator that is being restarted.
    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "NOT_A_COORDINATOR"


class StateError(UnavailableError):
    """The state directory cannot be used."""

    # A full disk, most of all: it passes when somebody has made room.
    reason = "BAD_STATE"


class ComputeError(UnavailableError):
    """The compute process ended without an answer."""

    reason = "COMPUTE_FAILED"


class QueueFullError(UnavailableError):
    """Too much waits to be computed already; it says when to ask again."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "QUEUE_FULL"

    def __init__(
        self,
        *,
        num_waiting: int,
        num_own: int,
        max_waiting: int,
        max_own: int,
        retry_after_seconds: float,
    ) -> None:
        full = (
            f"{num_own} requests of this caller wait to be computed, {max_own} may"
            if num_own >= max_own
            else f"{num_waiting} requests wait to be computed, {max_waiting} may"
        )
        super().__init__(f"{full}. Ask again in {retry_after_seconds:.0f} s.")
        self.retry_after_seconds = retry_after_seconds


class StorageFullError(UnavailableError):
    """A peer, or all of them together, have uploaded as much as the coordinator takes."""

    # Uploads end, and what nobody uses expires.
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "STORAGE_FULL"

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class TooManyCallsError(UnavailableError):
    """A peer calls more often, or more at once, than one may; it says when to call again."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "TOO_MANY_CALLS"

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


def error_classes(cls: type[LiptError] = LiptError) -> list[type[LiptError]]:
    """A class and all below it."""
    return [cls, *(below for sub in cls.__subclasses__() for below in error_classes(sub))]


def error_class(reason: str) -> type[LiptError]:
    """The class whose `reason` this is; LiptError itself for one from a newer peer."""
    own = {cls.reason: cls for cls in error_classes() if "reason" in vars(cls)}
    return own.get(reason, LiptError)
