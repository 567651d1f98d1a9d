"""Pictures of a search: scores over trials, and parallel coordinates."""

import os
from typing import Any

import numpy as np

from mirrored_keras.checkpoint.atomic import written_atomically
from mirrored_keras.errors import SetupError, TuningError, message
from mirrored_keras.tuning.trial_record import OUTCOMES

_COLORS = dict(
    zip((*OUTCOMES, "running"), ("tab:blue", "tab:orange", "tab:red", "tab:purple", "tab:gray"), strict=True)
)


def draw(
    rows: list[dict[str, Any]], path: str | os.PathLike[str], *, kind: str, objective: str, direction: str
) -> None:
    """Draws the trials of a search.

    Args:
        rows: The table of results.
        path: Of the picture.
        kind: "scores" or "parallel".
        objective: Name of the objective.
        direction: "min" or "max".

    Raises:
        SetupError: matplotlib is not installed.
        TuningError: `kind` is another word.
    """
    kinds = {"scores": _draw_scores, "parallel": _draw_parallel}
    if kind not in kinds:
        raise TuningError(
            message(
                f"`kind` of a picture is one of {tuple(kinds)}.",
                f"kind={kind!r}",
                'tuner.plot_results("search.png", kind="parallel")',
            )
        )
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SetupError(
            message("Pictures need matplotlib.", f"{error}", 'pip install "mirrored-keras[plot]"')
        ) from error
    figure = Figure(figsize=(9, 5), layout="constrained")  # without pyplot, which would look for a screen
    kinds[kind](figure.add_subplot(), rows, objective, direction)
    with written_atomically(path) as temporary:
        figure.savefig(temporary)


def _draw_scores(axes, rows, objective, direction):
    scored = [(index, row) for index, row in enumerate(rows) if row["score"] is not None]
    for outcome in ("completed", "stopped"):
        points = [(index, row["score"]) for index, row in scored if row["outcome"] == outcome]
        if points:
            axes.plot(*zip(*points, strict=True), "o", color=_COLORS[outcome], label=outcome)
    lost = [(index, row["outcome"]) for index, row in enumerate(rows) if row["score"] is None]
    for outcome in dict.fromkeys(outcome for _, outcome in lost):
        indices = [index for index, other in lost if other == outcome]
        # at the lower edge: they have no score
        axes.plot(
            indices, [0.02] * len(indices), "x", color=_COLORS[outcome], label=outcome, transform=_lower_edge(axes)
        )
    if scored:
        best = np.maximum.accumulate if direction == "max" else np.minimum.accumulate
        axes.step([i for i, _ in scored], best([row["score"] for _, row in scored]), where="post", label="best so far")
        axes.legend()
    axes.set_xlabel("trial")
    axes.set_ylabel(objective)


def _lower_edge(axes):
    return axes.get_xaxis_transform()


def _draw_parallel(axes, rows, objective, direction):
    done = [row for row in rows if row["score"] is not None]
    names = [name for row in done for name in row if name.startswith("hp.") and not name.startswith("hp.tuner/")]
    columns = [*dict.fromkeys(names), "score"]
    if not done:
        return
    places = np.array([_places([row.get(name) for row in done]) for name in columns]).T
    from matplotlib import colormaps

    goodness = places[:, -1] if direction == "max" else 1 - places[:, -1]
    for row, good in sorted(zip(places, goodness, strict=True), key=lambda pair: pair[1]):
        axes.plot(range(len(columns)), row, color=colormaps["viridis"](float(good)), alpha=0.8)
    for index, name in enumerate(columns):
        values = [row.get(name) for row in done]
        for place, value in dict(zip(_places(values), values, strict=True)).items():
            text = f"{value:.3g}" if isinstance(value, float) else str(value)
            axes.annotate(text, (index, place), fontsize=7)
    axes.set_xticks(range(len(columns)), [*(name.removeprefix("hp.") for name in columns[:-1]), objective])
    axes.set_yticks([])


def _places(values):
    """Returns the height of each value between 0 and 1: by size for numbers, by order for all else."""
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    kinds = sorted({str(value) for value in values})
    heights = [float(value) if numbers else float(kinds.index(str(value))) for value in values]
    low, high = min(heights), max(heights)
    return [0.5 if high == low else (height - low) / (high - low) for height in heights]
