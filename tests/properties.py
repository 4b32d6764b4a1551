"""How many examples hypothesis tries: few in `make test`, more in `make test-all`."""

from hypothesis import settings


def register_profiles() -> None:
    """Make `--hypothesis-profile` take `quick` and `thorough`, which is the default."""
    settings.register_profile("thorough", max_examples=100, deadline=None)
    settings.register_profile("quick", max_examples=15, deadline=None, derandomize=True)
    settings.load_profile("thorough")


def at_most(num_examples: int) -> int:
    return min(num_examples, settings().max_examples)
