import copy

from lipt.common.errors import LiptError, QueueFullError, error_class, error_classes

FAMILIES = {cls.__name__: cls for cls in error_classes() if "reason" not in vars(cls)}
REASONS = [cls for cls in error_classes() if cls not in FAMILIES.values()]


def test_every_error_reason_has_one_class_that_tells_if_it_is_retryable() -> None:
    assert [error_class(cls.reason) for cls in REASONS] == REASONS
    assert set(LiptError.__subclasses__()) == set(FAMILIES.values())
    assert {name: cls.retryable for name, cls in FAMILIES.items()} == {
        "RequestError": False,
        "InputError": False,
        "LifecycleError": False,
        "TransferError": True,
        "UnavailableError": True,
    }
    assert all("retryable" not in vars(cls) for cls in REASONS if cls is not LiptError)


def test_a_pickled_error_keeps_its_message_and_retry_time() -> None:
    again = copy.copy(QueueFullError("3 wait. Ask again.", retry_after_seconds=2.5))
    assert (type(again), str(again)) == (QueueFullError, "3 wait. Ask again.")
    assert again.retry_after_seconds == 2.5
    assert error_class("SOMETHING_NEW") is error_class("INTERNAL") is LiptError
