"""What a check finds: the cause by name, the evidence, the line, and the change that mends it."""

import dataclasses
from typing import Any

#: Every cause that can be named, and what it says.
CAUSES = {
    "batch-norm-not-synchronised": "BatchNormalization uses the statistics of each replica's own rows",
    "random-layers": "Random layers draw other numbers on several replicas than on one",
    "loss-over-the-whole-batch": "A loss of Keras looks at all rows at once, and sees one replica's only",
    "custom-loss-not-additive": "A custom loss of all rows is not the mean of that of their parts",
    "compute-loss-not-additive": "`compute_loss` of all rows is not the mean of that of their parts",
    "keras-loss-called-directly": "A `keras.losses` object is called in own code, where it divides by local rows",
    "add-loss-is-a-sum": "`add_loss` gets a sum over rows, and is read as a mean over rows",
    "add-loss-not-additive": "`add_loss` gets a number that is no mean over rows",
    "train-step-without-scale": "`train_step` sums gradients over the replicas without the share of each",
    "clipping-before-the-sum": "`train_step` clips the gradients of each replica before they are summed",
    "state-of-own-layer": "A layer updates a variable of its own with values of one replica's rows",
    "layer-mixes-rows": "A layer computes a row of its output from other rows too",
    "metric-not-additive": "The state of a metric is no sum over rows",
    "log-not-a-mean": "`train_step` returns a number that is no mean over rows",
    "stock-keras-model": "The model is a `keras.Model`, whose step on several replicas is another one",
    "stops-on-several-replicas": "Building or training stops with an error on several replicas",
    "data-differs-between-runs": "The dataset gives other batches every time it is made",
    "data-depends-on-replicas": "The dataset gives other global batches on several replicas",
    "training-differs-between-runs": "The same training twice on one replica gives two results",
    "weights-start-differently": "The model starts with other weights every time it is built",
    "one-replica-differs-from-reference": "One replica does not train as the independent loop does",
    "unexplained": "None of the causes that are known explains the difference",
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One reason why N replicas do not train as one.

    Attributes:
        cause: A key of `CAUSES`.
        evidence: What was tried or seen.
        fix: The change, as code.
        place: `file:line` of the user's code, or `None`.
        certain: Whether an experiment or the code itself shows it; else it is only suspected.

    Example:
        >>> finding = Finding("unexplained", evidence="all experiments left the difference", fix="")
        >>> finding.title
        'None of the causes that are known explains the difference'
    """

    cause: str
    evidence: str
    fix: str
    place: str | None = None
    certain: bool = True

    @property
    def title(self) -> str:
        """What the cause says."""
        return CAUSES[self.cause]

    def to_dict(self) -> dict[str, Any]:
        """Returns all of it, for JSON.

        Returns:
            Plain values.
        """
        return {**dataclasses.asdict(self), "title": self.title}

    def __str__(self) -> str:
        lines = [f"{self.cause}{'' if self.certain else ' (suspected)'}: {self.title}."]
        lines += [f"  Evidence: {self.evidence}"]
        lines += [f"  Line: {self.place}"] if self.place else []
        lines += ["  What to do: " + self.fix.replace("\n", "\n    ")] if self.fix else []
        return "\n".join(lines)
