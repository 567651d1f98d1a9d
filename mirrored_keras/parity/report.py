"""What a check says: PASS, or the first number that differs and why; as text, JSON and a picture."""

import dataclasses
import json
import os
from typing import Any

from mirrored_keras.parity.comparison import Comparison, Difference
from mirrored_keras.parity.findings import Finding
from mirrored_keras.parity.runs import Trace


@dataclasses.dataclass(frozen=True)
class Run:
    """One training of a check, without its weights.

    Attributes:
        name: What trained.
        losses: The loss of every batch.
        errors: After every step, the largest difference of a weight to one replica, relative to the distance trained.
        first: The first number that differs.
        stopped: The error that stopped it.
    """

    name: str
    losses: list[float]
    errors: list[float]
    first: Difference | None = None
    stopped: str | None = None

    @classmethod
    def of(cls, trace: Trace, compared: Comparison | None = None) -> "Run":
        """Returns what a report keeps of a training.

        Args:
            trace: The training.
            compared: How it differs from one replica; `None` for one replica itself.

        Returns:
            The run.
        """
        losses = [logs.get("loss", float("nan")) for logs in trace.logs]
        stopped = None if trace.error is None else f"{type(trace.error).__name__}: {trace.error}"
        if compared is None:
            return cls(trace.name, losses, [0.0] * len(losses), stopped=stopped)
        return cls(trace.name, losses, compared.errors, compared.first, stopped)


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of `check`.

    Attributes:
        findings: Why it did not pass; empty if it did.
        runs: All trainings, one replica first.
        rows: Rows of every global batch.
        notes: What was left out, and why.

    Example:
        >>> report = Report(findings=[], runs=[Run("1 replica", [2.0], [0.0])], rows=[4])
        >>> print(report)
        PASS: 1 replica; 1 step, batches of 4 rows.
    """

    findings: list[Finding]
    runs: list[Run]
    rows: list[int]
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether all trainings are that of one replica."""
        return not self.findings and all(run.first is None and run.stopped is None for run in self.runs)

    def __str__(self) -> str:
        names = ", ".join(run.name for run in self.runs)
        sizes = sorted(set(self.rows), reverse=True)
        steps = f"{len(self.rows)} step{'s' if len(self.rows) != 1 else ''}"
        lines = [
            f"{'PASS' if self.passed else 'DIFFERS'}: {names}; {steps}, batches of {_listed(sizes)} rows.",
        ]
        for run in self.runs[1:]:
            if run.stopped is not None:
                lines.append(f"{run.name}: stopped after {len(run.losses)} steps: {run.stopped.splitlines()[0]}")
            if run.first is not None:
                lines.append(f"{run.name}: first difference at {run.first}.")
            elif run.stopped is None:
                lines.append(f"{run.name}: the same to {max(run.errors, default=0.0):.1e} of the distance trained.")
        lines += [str(finding) for finding in self.findings]
        lines += [f"Note: {note}" for note in self.notes]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Returns all of it as plain values.

        Returns:
            What `to_json` writes.
        """
        runs = [
            {**dataclasses.asdict(run), "first": None if run.first is None else run.first.to_dict()}
            for run in self.runs
        ]
        findings = [finding.to_dict() for finding in self.findings]
        return {"passed": self.passed, "findings": findings, "runs": runs, "rows": self.rows, "notes": self.notes}

    def to_json(self) -> str:
        """Returns all of it as JSON; a number that is none becomes `null`.

        Returns:
            The text.
        """
        return json.dumps(_finite(self.to_dict()), indent=2)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws the losses over each other, and the difference per step on a logarithmic scale.

        Args:
            path: Of the picture; its ending decides the format.

        Raises:
            SetupError: matplotlib is not installed.
        """
        from mirrored_keras.parity import picture

        picture.draw(self, path)


def _listed(sizes):
    return " and ".join(str(size) for size in sizes) if len(sizes) < 4 else f"{sizes[-1]} to {sizes[0]}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value
