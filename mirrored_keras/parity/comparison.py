"""Two trainings, step by step: the first number that differs by more than rounding."""

import dataclasses
from typing import Any

import numpy as np

from mirrored_keras.parity import tolerances
from mirrored_keras.parity.runs import Trace
from mirrored_keras.parity.variables import Label

# A slot of an optimizer may hold squares of gradients, or what two of them were made into.
_TIMES_FOR_SLOTS = 4


@dataclasses.dataclass(frozen=True)
class Difference:
    """A number that is not that of one replica.

    Attributes:
        step: The step after which it was read, from 1 on.
        kind: "log", "weight", "state" (of a layer) or "optimizer".
        name: Name of the log, path of the variable.
        index: Which number of the variable.
        one: Its value on one replica.
        other: Its value in the other training.
        allowed: The largest difference that rounding explains.
        replica: The replica that was read, where the replicas disagree.
        others: How many further variables and logs differ after the same step.
    """

    step: int
    kind: str
    name: str
    index: tuple[int, ...]
    one: float
    other: float
    allowed: float
    replica: int = 0
    others: int = 0

    @property
    def difference(self) -> float:
        """How far the values are apart."""
        return abs(self.one - self.other)

    def to_dict(self) -> dict[str, Any]:
        """Returns all of it, for JSON.

        Returns:
            Plain values.
        """
        return {**dataclasses.asdict(self), "index": list(self.index), "difference": self.difference}

    def __str__(self) -> str:
        at = "".join(f"[{number}]" for number in self.index)
        where = f" on replica {self.replica}" if self.replica else ""
        more = f"; {self.others} more differ after this step" if self.others else ""
        return (
            f"step {self.step}, {self.kind} {self.name!r}{at}{where}: {self.one:.9g} on one replica, "
            f"{self.other:.9g} here; difference {self.difference:.2e}, allowed {self.allowed:.2e}{more}"
        )


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        name: Which training was compared with one replica.
        differences: All numbers, one per variable and log, that differ after the first step where one does.
        later: Kinds of numbers that differ after any step.
        errors: Largest difference of a weight after every step, relative to the distance trained.
    """

    name: str
    differences: list[Difference]
    later: frozenset[str]
    errors: list[float]

    @property
    def first(self) -> Difference | None:
        """The first difference; a variable before a log."""
        ordered = sorted(self.differences, key=lambda found: found.kind == "log")
        return dataclasses.replace(ordered[0], others=len(ordered) - 1) if ordered else None


def compare(one: Trace, other: Trace, noise: Trace | None = None) -> Comparison:
    """Compares all variables and logs after every step that both have made.

    Args:
        one: One replica.
        other: Another training from the same state on the same batches.
        noise: One replica with the rows of every batch in another order: what it differs by is rounding.

    Returns:
        The comparison.
    """
    start = one.start.weights if one.start else []
    scales = _Scales(one.labels, start)
    found: list[Difference] = []
    later: set[str] = set()
    errors = []
    noises: dict[str, float] = {}
    for step in range(min(len(one.values), len(other.values))):
        values, received = one.values[step], other.values[step]
        scales.add(values)
        _raise_noises(noises, one, noise, step, scales)
        here = [*_variables(one, other, step, scales, noises, values, received), *_logs(one, other, step, noises)]
        later.update(difference.kind for difference in here)
        found = found or here
        errors.append(scales.error(values, received))
    return Comparison(other.name, found, frozenset(later), errors)


def _variables(one, other, step, scales, noises, values, received):
    for index, label in enumerate(one.labels[: len(values)]):
        if index >= len(received) or values[index].shape != received[index].shape:
            continue
        allowed = max(scales.allowed(index, step + 1, values[index]), noises.get(label.path, 0.0))
        drifted = other.drift[step].get(index) if other.drift else None
        for replica, array in ((0, received[index]), *([drifted] if drifted else [])):
            worst = _worst(values[index], array, allowed)
            if worst is not None:
                numbers = float(values[index][worst]), float(array[worst])
                place = tuple(int(number) for number in worst)
                yield Difference(step + 1, label.kind, label.path, place, *numbers, allowed, replica)
                break


def _worst(expected, received, allowed):
    """Returns the index of the largest difference, where it is not allowed; NaN never is, unless both are."""
    if not expected.size or expected.dtype.kind not in "fiub":
        return None
    far = np.abs(expected.astype("float64") - received.astype("float64"))
    far = np.where(np.isnan(expected) & np.isnan(received), 0, far)
    far = np.where(expected == received, 0, far)  # also of infinities
    far = np.where(np.isnan(far), np.inf, far)
    worst = np.unravel_index(int(np.argmax(far)), far.shape)
    return None if far[worst] <= allowed else worst


def _logs(one, other, step, noises):
    for name, value in one.logs[step].items():
        if name in other.logs[step]:
            allowed = max(_allowed_of_log(one, step, value), noises.get(name, 0.0))
            if not _equal(value, other.logs[step][name], allowed):
                yield Difference(step + 1, "log", name, (), value, other.logs[step][name], allowed)


def _equal(value, received, allowed):
    return abs(value - received) <= allowed or value == received or (np.isnan(value) and np.isnan(received))


def _allowed_of_log(one, step, value):
    return tolerances.logs(step + 1, precision_of(one.labels)) * max(abs(value), tolerances.SMALLEST_LOG)


def _raise_noises(noises, one, noise, step, scales):
    if noise is None or step >= len(noise.values):
        return
    largest = tolerances.LARGEST_NOISE[precision_of_steps(one)]
    times = tolerances.TIMES_ANOTHER_ORDER
    for index, (label, a, b) in enumerate(zip(one.labels, one.values[step], noise.values[step], strict=False)):
        if a.size and a.dtype.kind == "f":
            measured = min(times * float(np.nanmax(np.abs(a - b))), largest * scales.of(index))
            noises[label.path] = max(noises.get(label.path, 0.0), measured)
    for name, value in one.logs[step].items():
        measured = times * abs(value - noise.logs[step].get(name, value))
        limit = largest * max(abs(value), tolerances.SMALLEST_LOG)
        noises[name] = max(noises.get(name, 0.0), min(measured, limit))


def precision_of(labels: list[Label]) -> str:
    """Returns the precision of a model's weights.

    Args:
        labels: Its variables.

    Returns:
        "float64" if all floats are, else "float32".
    """
    floats = {label.dtype for label in labels if label.kind == "weight" and label.dtype.startswith("float")}
    return "float64" if floats == {"float64"} else "float32"


def precision_of_steps(trace: Trace) -> str:
    """Returns the lowest precision that a step computes in.

    Args:
        trace: A training.

    Returns:
        A key of `tolerances.LARGEST_NOISE`.
    """
    used = {str(layer.compute_dtype) for layer in getattr(trace.model, "layers", ())}
    for name in ("float16", "bfloat16"):
        if name in used:
            return name
    return precision_of(trace.labels)


class _Scales:
    """What a difference is measured by: the distance trained, or the size of a variable."""

    def __init__(self, labels: list[Label], start: list[np.ndarray]):
        self._labels = labels
        self._start = start
        self._precision = precision_of(labels)
        self._trained = 0.0
        self._moved: dict[int, float] = {}
        self._slots: dict[str, float] = {}

    def add(self, values):
        for index, (label, value) in enumerate(zip(self._labels, values, strict=False)):
            if not value.size or value.dtype.kind not in "fiu":
                continue
            if label.kind == "optimizer":
                size = float(np.nanmax(np.abs(value)))
                self._slots[_slot(label)] = max(self._slots.get(_slot(label), 0.0), size)
            elif index < len(self._start):
                moved = float(np.nanmax(np.abs(value.astype("float64") - self._start[index].astype("float64"))))
                self._moved[index] = max(self._moved.get(index, 0.0), moved)
                if label.kind == "weight":
                    self._trained = max(self._trained, moved)

    def of(self, index):
        label = self._labels[index]
        if label.kind == "optimizer":
            return self._slots.get(_slot(label), 0.0)
        return self._trained if label.kind == "weight" else self._moved.get(index, 0.0)

    def allowed(self, index, steps, value):
        if value.dtype.kind != "f":
            return 0.0
        times = _TIMES_FOR_SLOTS if self._labels[index].kind == "optimizer" else 1
        relative = times * tolerances.weights(steps, self._precision) * self.of(index)
        # every step rounds the sum of a weight and its change
        size = float(np.nanmax(np.abs(value))) if value.size else 0.0
        return relative + steps * float(np.finfo(value.dtype).eps) * size

    def error(self, values, received):
        pairs = zip(self._labels, values, received, strict=False)
        far = [np.max(np.abs(a - b)) for label, a, b in pairs if label.kind == "weight" and a.size]
        return float(max(far, default=0.0)) / (self._trained or 1.0)


def _slot(label):
    return label.path.rsplit("_", 1)[-1]
