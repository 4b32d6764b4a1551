import threading
from collections.abc import Iterator

import pytest

from lipt.data.parallel import map_rows, prefetched


@pytest.mark.parametrize("num_threads", [1, 3])
def test_rows_are_in_order_and_the_first_failure_is_raised(num_threads: int) -> None:
    found = list(map_rows(lambda row: row * row, range(600), num_threads=num_threads))
    assert found == [row * row for row in range(600)]
    with pytest.raises(ZeroDivisionError):
        list(map_rows(lambda row: {0: 1 / row}[row % 7], range(600), num_threads=num_threads))


def test_a_thread_reads_at_most_two_batches_ahead_in_order() -> None:
    begun = [threading.Event() for _ in range(6)]
    asked, names = list[int](), set[str]()

    def parts() -> Iterator[int]:
        for part in range(6):
            asked.append(part)
            yield part

    def read(part: int) -> int:
        begun[part].set()
        names.add(threading.current_thread().name)
        return part * part

    with prefetched(read, parts()) as batches:
        assert next(batches) == 0
        # Nobody asks for another, and yet they are read.
        assert begun[1].wait(10)
        assert begun[2].wait(10)
        assert asked == [0, 1, 2]
        assert not any(event.is_set() for event in begun[3:])
        assert list(batches) == [1, 4, 9, 16, 25]
    (name,) = names
    assert name.startswith("decode")


def test_a_read_error_is_raised_at_its_batch() -> None:
    def read(part: int) -> int:
        if part == 2:
            raise ValueError("the file of part 2 is broken")
        return part

    with prefetched(read, range(5)) as batches:
        assert [next(batches), next(batches)] == [0, 1]
        with pytest.raises(ValueError, match="part 2 is broken"):
            next(batches)


def test_an_error_in_the_block_ends_reading_after_the_current_batch() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), list[int]()

    def read(part: int) -> int:
        if part:
            begun.set()
            assert go_on.wait(10)
        ended.append(part)
        return part

    def work() -> None:
        with prefetched(read, range(6)) as batches:
            next(batches)
            assert begun.wait(10)
            threading.Timer(0.05, go_on.set).start()
            raise KeyError("the job is dropped")

    with pytest.raises(KeyError):
        work()
    assert ended == [0, 1]
    assert not [one for one in threading.enumerate() if one.name.startswith("decode")]
