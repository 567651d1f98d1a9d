"""The table at the end of the demo: loss per epoch and largest weight difference, one column per training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirrored_keras.cli.demo_training import Run

LAST_ROW = "largest weight difference"


def render(runs: Sequence[Run]) -> str:
    """Writes trainings side by side.

    Args:
        runs: The trainings; the first is the one that the others are compared with.

    Returns:
        Lines of text without a final line break.
    """
    reference = runs[0]
    rows = [["loss in epoch", *(run.name for run in runs)]]
    for epoch in range(len(reference.losses)):
        rows.append([f"{epoch + 1}", *(_loss(run, epoch) for run in runs)])
    rows.append(["held-out accuracy", *(_unless_stopped(run, f"{run.accuracy:.2%}") for run in runs)])
    rows.append([LAST_ROW, "0", *(_difference(run, reference) for run in runs[1:])])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    ruler = "-" * len(lines[0])
    notes = [f"{run.name} stopped: {run.stopped}" for run in runs if run.stopped]
    return "\n".join([lines[0], ruler, *lines[1:-2], ruler, *lines[-2:], *notes])


def _loss(run: Run, epoch: int) -> str:
    return _unless_stopped(run, f"{run.losses[epoch]:.6f}" if epoch < len(run.losses) else "")


def _difference(run: Run, reference: Run) -> str:
    return "stopped" if run.stopped else f"{run.largest_weight_difference(reference):.1e}"


def _unless_stopped(run: Run, text: str) -> str:
    return "stopped" if run.stopped else text
