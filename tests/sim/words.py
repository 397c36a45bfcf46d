"""Words that all scenarios share."""


class ScenarioError(Exception):
    """A line of a scenario that cannot be played."""


def seconds(text: str) -> float:
    """Return the number of a duration such as ``3s`` or ``200ms``."""
    if text.endswith("ms"):
        return float(text[:-2]) / 1000
    if not text.endswith("s"):
        raise ValueError(f"{text!r} is no duration: 3s, 200ms")
    return float(text[:-1])
