"""Small lines of values over time: values in, paths of SVG out."""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 120, 22


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A line, which breaks where nothing was known, and the area below it."""

    line: str
    area: str
    largest: float
    last: float


def paths(values: Sequence[float | None]) -> Sparkline | None:
    """Return the paths in a box of ``WIDTH`` by ``HEIGHT``; None without values."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    largest = max(known)
    step = WIDTH / max(1, len(values) - 1)
    line, area, run = [], [], list[tuple[float, float]]()
    for index, value in enumerate([*values, None]):
        if value is not None:
            share = value / largest if largest > 0 else 0.0
            run.append((index * step, HEIGHT - 1 - share * (HEIGHT - 3)))
        elif run:
            if len(run) == 1:
                run.append((run[0][0] + step / 2, run[0][1]))
            points = "L".join(f"{x:.1f} {y:.1f}" for x, y in run)
            line.append(f"M{points}")
            area.append(f"M{run[0][0]:.1f} {HEIGHT}L{points}L{run[-1][0]:.1f} {HEIGHT}Z")
            run.clear()
    return Sparkline("".join(line), "".join(area), largest, known[-1])
