"""How many examples a test of a property takes: few in `make test`, many in `make soak`.

Examples are made up anew each time, so many runs of few find what one run of many does.
"""

from hypothesis import settings

QUICK = settings(deadline=None, max_examples=25, derandomize=False)
"""A busy machine is no failure: tests have pytest's time-out, examples none of their own. Where
`CI` is set, hypothesis would else make up the same examples each time."""

THOROUGH = settings(QUICK, max_examples=300)


def examples(quick: int, thorough: int) -> int:
    """Return how many examples to take where the profile's number is too many, or too few."""
    return thorough if settings.get_current_profile_name() == "thorough" else quick
