"""Every refusal of the service: a sentence with the values and the remedy.

One class per reason. Each decides its gRPC status once; `reason` travels in
`google.rpc.ErrorInfo` (domain "lipt"), so that the peer raises the same class.
"""

from __future__ import annotations

from typing import Any, ClassVar

import grpc

DOMAIN = "lipt"


class LiptError(Exception):
    """Base of everything this package raises on purpose."""

    code: ClassVar[grpc.StatusCode] = grpc.StatusCode.INTERNAL
    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def problem(self) -> str:
        """The first sentence: what was wrong, without what to do."""
        return self.message.partition(". ")[0].removesuffix(".")

    def __reduce__(self) -> tuple[Any, ...]:
        # A class may build its sentence from other arguments: between processes the sentence goes.
        return revive, (type(self), self.message)


def revive(cls: type[LiptError], message: str) -> LiptError:
    """An error of another process: its class with its finished sentence."""
    error = cls.__new__(cls)
    LiptError.__init__(error, message)
    return error


class ConfigError(LiptError):
    """A configuration value, alone or with the data, cannot be used."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_CONFIG"


class BudgetError(LiptError):
    """The requested subset cannot be taken from the data set."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_BUDGET"


class UnknownNameError(LiptError):
    """A strategy, model or data set that does not exist; the message lists those that do."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "UNKNOWN_NAME"


class StrategyOptionError(LiptError):
    """A strategy's option does not exist or has a value that it does not take."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_OPTION"


class FactoryNotAllowedError(LiptError):
    """A remote peer named a factory in a module that this process's flags do not allow."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "FACTORY_NOT_ALLOWED"


class DataError(LiptError):
    """The data set is missing, empty, or holds an example that cannot be read."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "BAD_DATA"


class SignalsError(LiptError):
    """The model's outputs on the data are not finite, so nothing can be selected on them."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "BAD_SIGNALS"


class MissingExtraError(LiptError):
    """An optional dependency is not installed; the message has the command that installs it."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "MISSING_EXTRA"

    def __init__(self, package: str, *, extra: str, needed_for: str) -> None:
        super().__init__(
            f"{needed_for} needs the package {package!r}. "
            f"Install it with: pip install 'lipt[{extra}]'"
        )


class WeightsError(LiptError):
    """Weights that are not those of the model, or a file that is not safetensors."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_WEIGHTS"


class FeaturesError(LiptError):
    """A user's own features do not fit the data set, or are no such file."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_FEATURES"


class LearnerRejectedError(LiptError):
    """A committed learner that the soup must not see."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "LEARNER_REJECTED"


class TrainingDivergedError(LiptError):
    """Main training's loss is no longer finite; its weights are worth nothing."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "TRAINING_DIVERGED"


class CorruptChunkError(LiptError):
    """A chunk's bytes differ from their CRC."""

    code = grpc.StatusCode.DATA_LOSS
    reason = "CORRUPT_CHUNK"


class CorruptBlobError(LiptError):
    """A blob's bytes differ from their SHA-256 digest."""

    code = grpc.StatusCode.DATA_LOSS
    reason = "CORRUPT_BLOB"


class InvalidBlobNameError(LiptError):
    """A blob reference that is not a SHA-256 digest and a size."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_BLOB_NAME"


class UnknownBlobError(LiptError):
    """Nothing is stored under that digest."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "UNKNOWN_BLOB"


class BlobTooLargeError(LiptError):
    """A blob, message or tensor count over the limit, refused from what it declares."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "BLOB_TOO_LARGE"


class WrongOffsetError(LiptError):
    """A chunk does not continue what is stored; ask for the status and resume there."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "WRONG_OFFSET"


class UploadInProgressError(LiptError):
    """Another peer is sending the same blob; try again, it may be complete by then."""

    code = grpc.StatusCode.ABORTED
    reason = "UPLOAD_IN_PROGRESS"


class IncompatibleProtocolError(LiptError):
    """Two peers whose protocol majors differ."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "INCOMPATIBLE_PROTOCOL"


class UnknownWorkerError(LiptError):
    """The coordinator does not know the worker (it was restarted): register again."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "UNKNOWN_WORKER"


class StaleLeaseError(LiptError):
    """The assignment's lease is over; the result is not used."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "STALE_LEASE"


class UnknownRunError(LiptError):
    """No run has that id or name."""

    code = grpc.StatusCode.NOT_FOUND
    reason = "UNKNOWN_RUN"


class RunNotReadyError(LiptError):
    """The run has not got as far as the request needs, or ended without it."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "RUN_NOT_READY"


class RunFailedError(LiptError):
    """The run cannot go on; the message is what its record says."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "RUN_FAILED"


class InvalidRequestError(LiptError):
    """A request whose fields are missing or out of range."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_REQUEST"


class StateError(LiptError):
    """The state directory cannot be used."""

    code = grpc.StatusCode.INTERNAL
    reason = "BAD_STATE"


class ComputeError(LiptError):
    """The compute process ended without an answer."""

    code = grpc.StatusCode.INTERNAL
    reason = "COMPUTE_FAILED"


class UnreachableError(LiptError):
    """The coordinator does not answer."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "UNREACHABLE"


class ForkedError(UnreachableError):
    """This process forked during a call, which ended it; it can be made again at once."""

    reason = "FORKED"


class NotACoordinatorError(LiptError):
    """What answers at the address is another kind of gRPC server."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = "NOT_A_COORDINATOR"


class SubsetError(LiptError):
    """A subset whose examples differ from its digest, or a file that does not hold one."""

    code = grpc.StatusCode.DATA_LOSS
    reason = "BAD_SUBSET"


def _leaves(cls: type[LiptError]) -> list[type[LiptError]]:
    return [cls, *(leaf for sub in cls.__subclasses__() for leaf in _leaves(sub))]


def error_class(reason: str) -> type[LiptError]:
    """The class whose `reason` this is; LiptError itself for one from a newer peer."""
    return {cls.reason: cls for cls in _leaves(LiptError)}.get(reason, LiptError)
