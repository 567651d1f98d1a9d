"""Learning rates for another global batch size: scaling rules, and a warm-up that leads up to them."""

import math
from collections.abc import Callable
from typing import Any

import keras

from mirrored_keras.errors import SetupError, message

#: Name -> factor of the learning rate, from b / b_0: rows of the batch over rows of the batch it was tuned for.
RULES: dict[str, Callable[[float], float]] = {
    "constant": lambda ratio: 1.0,
    "linear": lambda ratio: ratio,
    "sqrt": math.sqrt,
}


def scale_factor(batch: int, base_batch: int, *, rule: str = "linear") -> float:
    """Returns the factor of the learning rate for another global batch size.

    With b rows in the batch and b_0 in the one that the rate was tuned for: b / b_0 (linear; for SGD), sqrt(b / b_0)
    (sqrt; common for Adam and its like), or 1 (constant).

    Args:
        batch: b, rows of the global batch.
        base_batch: b_0.
        rule: "linear", "sqrt" or "constant".

    Returns:
        The factor.

    Raises:
        SetupError: `rule` is another word, or a batch has no rows.

    Example:
        >>> from mirrored_keras.schedules import scale_factor
        >>> scale_factor(1024, 256), scale_factor(1024, 256, rule="sqrt")
        (4.0, 2.0)
    """
    if rule not in RULES or batch < 1 or base_batch < 1:
        raise SetupError(
            message(
                f"A learning rate is scaled by one of the rules {tuple(RULES)}, from positive numbers of rows.",
                f"rule={rule!r}, batch={batch!r}, base_batch={base_batch!r}",
                'scale_factor(1024, 256, rule="linear")',
            )
        )
    return RULES[rule](batch / base_batch)


@keras.saving.register_keras_serializable(package="mirrored_keras")
class ScaledWarmup(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate scaled to a larger global batch, reached gradually from the one it was tuned with.

    With k the factor of the rule, w the steps of the warm-up and r(t) the rate for the base batch,

        rate(t) = r(t) * (1 + (k - 1) * min(t / w, 1)),

    the gradual warm-up and, for `rule="linear"`, the scaling rule of P. Goyal et al., "Accurate, Large Minibatch SGD:
    Training ImageNet in 1 Hour", 2017 (arXiv:1706.02677), who warm up for five epochs. Steps are those of the
    optimizer: they do not depend on the number of replicas.

    Args:
        learning_rate: r, a number or any schedule of Keras, as tuned for `base_batch`.
        batch: Rows of the global batch.
        base_batch: Rows of the batch that r was tuned for.
        rule: "linear", "sqrt" or "constant".
        warmup_steps: w; 0 starts at k * r.

    Raises:
        SetupError: An argument is none of these.

    Example:
        >>> from mirrored_keras.schedules import ScaledWarmup
        >>> rate = ScaledWarmup(0.1, batch=1024, base_batch=256, warmup_steps=100)
        >>> [round(float(rate(step)), 3) for step in (0, 50, 100, 1000)]
        [0.1, 0.25, 0.4, 0.4]
    """

    def __init__(self, learning_rate: Any, *, batch: int, base_batch: int, rule: str = "linear", warmup_steps: int = 0):
        self.factor = scale_factor(batch, base_batch, rule=rule)
        if warmup_steps < 0:
            raise SetupError(
                message(
                    "A warm-up has a number of steps, 0 or more.",
                    f"warmup_steps={warmup_steps!r}",
                    "ScaledWarmup(0.1, batch=1024, base_batch=256, warmup_steps=5 * steps_per_epoch)",
                )
            )
        self.learning_rate = learning_rate
        self.batch, self.base_batch, self.rule, self.warmup_steps = batch, base_batch, rule, warmup_steps

    def __call__(self, step: Any) -> Any:
        """Returns the rate of a step.

        Args:
            step: Number of the step, from 0.
        """
        dtype = keras.backend.floatx()
        rate = self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate
        done = keras.ops.minimum(keras.ops.cast(step, dtype) / max(self.warmup_steps, 1), 1.0)
        factor = self.factor if not self.warmup_steps else 1.0 + (self.factor - 1.0) * done
        return keras.ops.cast(rate, dtype) * keras.ops.cast(factor, dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, a schedule among them serialised."""
        rate = self.learning_rate
        is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
        return {
            "learning_rate": keras.saving.serialize_keras_object(rate) if is_schedule else rate,
            "batch": self.batch,
            "base_batch": self.base_batch,
            "rule": self.rule,
            "warmup_steps": self.warmup_steps,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ScaledWarmup":
        """Makes the schedule that `get_config` described.

        Args:
            config: From `get_config`.
        """
        rate = config["learning_rate"]
        rate = keras.saving.deserialize_keras_object(rate) if isinstance(rate, dict) else rate
        return cls(**{**config, "learning_rate": rate})
