"""The picture of a check: loss curves over each other, and the difference per step."""

import os
from typing import TYPE_CHECKING

from mirrored_keras.checkpoint.atomic import written_atomically
from mirrored_keras.errors import SetupError, message
from mirrored_keras.parity import tolerances

if TYPE_CHECKING:
    from mirrored_keras.parity.report import Report

_SMALLEST = 1e-17  # a difference of 0 has no place on a logarithmic scale


def draw(report: "Report", path: str | os.PathLike[str]) -> None:
    """Draws a report.

    Args:
        report: The report.
        path: Of the picture.

    Raises:
        SetupError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SetupError(
            message("Pictures need matplotlib.", f"{error}", 'pip install "mirrored-keras[plot]"')
        ) from error
    figure = Figure(figsize=(9, 7), layout="constrained")  # without pyplot, which would look for a screen
    above, below = figure.subplots(2, sharex=True)
    widths = [5.0, 2.5, 1.5, 1.0]
    for number, run in enumerate(report.runs):
        steps = range(1, len(run.losses) + 1)
        # the first is drawn broad, so that curves that lie on it can be seen
        style = "-" if number < 2 else "--"
        width = widths[min(number, len(widths) - 1)]
        (line,) = above.plot(steps, run.losses, style, linewidth=width, label=run.name)
        if number:
            errors = [max(error, _SMALLEST) for error in run.errors]
            below.plot(range(1, len(errors) + 1), errors, style, color=line.get_color(), marker=".", label=run.name)
    steps = range(1, len(report.rows) + 1)
    allowed = [tolerances.weights(step) for step in steps]
    below.plot(steps, allowed, ":", color="gray", label="allowed in float32")
    below.set_yscale("log")
    below.set_ylabel("largest difference of a weight\n/ distance trained")
    below.set_xlabel("step")
    above.set_ylabel("loss of the batch")
    above.set_title("PASS" if report.passed else "DIFFERS: " + ", ".join(one.cause for one in report.findings))
    above.legend()
    below.legend()
    with written_atomically(path) as temporary:
        figure.savefig(temporary)
