from __future__ import annotations

import copy

import grpc
import pytest

from lipt.common import errors
from lipt.common.errors import LiptError, QueueFullError, error_class, error_classes

FAMILIES = [cls for cls in error_classes() if "reason" not in vars(cls)]

# What peers of other versions know: the class, its family, its reason, its status, and whether
# the same call may succeed when it is made again.
CONTRACT = """
LiptError                 Exception         INTERNAL               INTERNAL             again
ConfigError               RequestError      INVALID_CONFIG         INVALID_ARGUMENT     never
BudgetError               RequestError      INVALID_BUDGET         INVALID_ARGUMENT     never
OverLimitError            RequestError      OVER_LIMIT             INVALID_ARGUMENT     never
OutOfMemoryError          RequestError      OUT_OF_MEMORY          RESOURCE_EXHAUSTED   never
UnknownNameError          RequestError      UNKNOWN_NAME           INVALID_ARGUMENT     never
StrategyOptionError       RequestError      INVALID_OPTION         INVALID_ARGUMENT     never
ProxyError                RequestError      INVALID_PROXY          INVALID_ARGUMENT     never
InvalidRequestError       RequestError      INVALID_REQUEST        INVALID_ARGUMENT     never
BlobTooLargeError         RequestError      BLOB_TOO_LARGE         RESOURCE_EXHAUSTED   never
FactoryNotAllowedError    RequestError      FACTORY_NOT_ALLOWED    PERMISSION_DENIED    never
UnauthenticatedError      RequestError      UNAUTHENTICATED        UNAUTHENTICATED      never
PermissionDeniedError     RequestError      PERMISSION_DENIED      PERMISSION_DENIED    never
ForeignWorkerError        RequestError      NOT_THIS_WORKER        PERMISSION_DENIED    never
MissingExtraError         RequestError      MISSING_EXTRA          FAILED_PRECONDITION  never
IncompatibleProtocolError RequestError      INCOMPATIBLE_PROTOCOL  FAILED_PRECONDITION  never
DataError                 InputError        BAD_DATA               FAILED_PRECONDITION  never
OtherDataError            DataError         OTHER_DATA             FAILED_PRECONDITION  never
SignalsError              InputError        BAD_SIGNALS            FAILED_PRECONDITION  never
WeightsError              InputError        INVALID_WEIGHTS        INVALID_ARGUMENT     never
FeaturesError             InputError        INVALID_FEATURES       INVALID_ARGUMENT     never
LearnerRejectedError      InputError        LEARNER_REJECTED       INVALID_ARGUMENT     never
LearnerDivergedError      InputError        LEARNER_DIVERGED       FAILED_PRECONDITION  never
TrainingDivergedError     InputError        TRAINING_DIVERGED      FAILED_PRECONDITION  never
UnknownRunError           LifecycleError    UNKNOWN_RUN            NOT_FOUND            never
RunNotReadyError          LifecycleError    RUN_NOT_READY          FAILED_PRECONDITION  never
RunFailedError            LifecycleError    RUN_FAILED             FAILED_PRECONDITION  never
UnknownWorkerError        LifecycleError    UNKNOWN_WORKER         NOT_FOUND            never
StaleLeaseError           LifecycleError    STALE_LEASE            FAILED_PRECONDITION  never
ForeignBlobError          LifecycleError    NOT_ITS_BLOB           PERMISSION_DENIED    never
LearnerStoppedError       LifecycleError    LEARNER_STOPPED        CANCELLED            never
UnknownBlobError          LifecycleError    UNKNOWN_BLOB           NOT_FOUND            never
UnknownTokenError         LifecycleError    UNKNOWN_TOKEN          NOT_FOUND            never
ProcessEndedError         LifecycleError    PROCESS_ENDED          INTERNAL             never
CorruptBlobError          TransferError     CORRUPT_BLOB           DATA_LOSS            again
SubsetError               TransferError     BAD_SUBSET             DATA_LOSS            again
DiagnosisError            TransferError     BAD_DIAGNOSIS          DATA_LOSS            again
WrongOffsetError          TransferError     WRONG_OFFSET           FAILED_PRECONDITION  again
UploadInProgressError     TransferError     UPLOAD_IN_PROGRESS     ABORTED              again
UnreachableError          UnavailableError  UNREACHABLE            UNAVAILABLE          again
ForkedError               UnreachableError  FORKED                 UNAVAILABLE          again
NotACoordinatorError      UnavailableError  NOT_A_COORDINATOR      UNIMPLEMENTED        again
StateError                UnavailableError  BAD_STATE              INTERNAL             again
ComputeError              UnavailableError  COMPUTE_FAILED         INTERNAL             again
QueueFullError            UnavailableError  QUEUE_FULL             RESOURCE_EXHAUSTED   again
StorageFullError          UnavailableError  STORAGE_FULL           RESOURCE_EXHAUSTED   again
TooManyCallsError         UnavailableError  TOO_MANY_CALLS         RESOURCE_EXHAUSTED   again
"""
ROWS = [row.split() for row in CONTRACT.strip().splitlines()]


@pytest.mark.parametrize(("name", "family", "reason", "status", "repeated"), ROWS)
def test_every_class_keeps_its_family_reason_status_and_whether_it_is_retried(
    name: str, family: str, reason: str, status: str, repeated: str
) -> None:
    cls: type[LiptError] = getattr(errors, name)
    assert cls.__base__ is not None
    assert cls.__base__.__name__ == family
    assert (cls.reason, cls.code) == (reason, grpc.StatusCode[status])
    assert cls.retryable is (repeated == "again")
    assert error_class(reason) is cls


def test_no_class_is_left_out_or_without_a_family() -> None:
    assert {cls.__name__ for cls in error_classes()} == {row[0] for row in ROWS} | {
        cls.__name__ for cls in FAMILIES
    }
    assert [cls for cls in LiptError.__subclasses__() if cls not in FAMILIES] == []


def test_a_family_says_whether_its_errors_are_retried_and_has_no_reason_of_its_own() -> None:
    assert all("retryable" in vars(cls) for cls in FAMILIES)
    assert error_class(FAMILIES[0].reason) is LiptError


def test_error_keeps_its_sentence_and_when_to_ask_again_between_processes() -> None:
    again = copy.copy(QueueFullError("3 wait. Ask again.", retry_after_seconds=2.5))
    assert (type(again), str(again)) == (QueueFullError, "3 wait. Ask again.")
    assert again.retry_after_seconds == 2.5


def test_reason_of_a_newer_version_is_a_plain_error() -> None:
    assert error_class("SOMETHING_NEW") is LiptError
