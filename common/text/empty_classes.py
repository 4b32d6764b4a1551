"""Empty classes: those that no example has, which is a mistake more often than not."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_NAMED = 5


def empty_classes(class_names: Sequence[str], class_counts: Sequence[int]) -> str:
    """What to say of classes without examples, as a clause; empty where every class has some.

    Args:
        class_names: of all classes.
        class_counts: how many examples each has; empty where nobody counted.
    """
    if len(class_counts) != len(class_names):
        return ""
    empty = [name for name, count in zip(class_names, class_counts, strict=True) if not count]
    if not empty:
        return ""
    more = f" and {len(empty) - _MOST_NAMED} more" if len(empty) > _MOST_NAMED else ""
    named = f"{', '.join(empty[:_MOST_NAMED])}{more}"
    clause = f"{len(empty)} of its {len(class_names)} classes have no example: {named}"
    if class_names[0] == "0" == empty[0]:
        first = next((index for index, count in enumerate(class_counts) if count), "none")
        clause += f"; its labels begin at {first}, and classes are counted from 0"
    return clause
