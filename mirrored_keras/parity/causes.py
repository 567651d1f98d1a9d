"""From a difference to its causes: experiments that take one thing away, then looks at the rest."""

import dataclasses
import traceback

import keras

from mirrored_keras import DistributedModel
from mirrored_keras.parity import additivity, looks, places, random_layers, runs, suspects
from mirrored_keras.parity.case import Case
from mirrored_keras.parity.comparison import compare
from mirrored_keras.parity.findings import Finding
from mirrored_keras.replica import private


def causes_of(case: Case) -> list[Finding]:
    """Finds out why a training differs from that on one replica.

    Args:
        case: The case.

    Returns:
        At least one finding.
    """
    if case.other.error is not None and isinstance(case.one.model, DistributedModel):
        return [_of_error(case)]
    again = runs.train(case.build, case.batches, replicas=None, seed=case.seed, start=case.start)
    repeated = compare(case.one, again).first
    if repeated is not None:
        evidence = f"trained twice on one replica from the same weights: {repeated}"
        fix = "keras.utils.set_random_seed(1) at the start, and no other source of random numbers"
        return [Finding("training-differs-between-runs", evidence, fix)]
    if not isinstance(case.one.model, DistributedModel):
        return _of_stock_model(case)
    return _of_distributed_model(case)


def _of_error(case):
    error = case.other.error
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    step = f"after {len(case.other.values)} steps" if len(case.other.values) else "before the first step"
    evidence = f"{type(error).__name__} {step}: " + " ".join(lines[:2])
    fix = next((line.removeprefix("What to do: ") for line in lines if line.startswith("What to do: ")), "")
    return Finding("stops-on-several-replicas", evidence, fix, _line_of_user(error))


def _line_of_user(error):
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and "/mirrored_keras/" not in f.filename]
    own = [frame for frame in own if "__autograph" not in frame.filename and not frame.filename.startswith("<")]
    return f"{places.short(own[-1].filename)}:{own[-1].lineno}" if own else None


def _of_stock_model(case):
    model = case.one.model
    evidence = f"{case.other.name}: " + (
        str(case.found.first) if case.found.first else _of_error(case).evidence if case.other.error else "logs differ"
    )
    wrong = _what_stock_does_wrong(case)
    if not suspects.convertible(model):
        fix = f"class {type(model).__name__}(mirrored_keras.DistributedModel): ..."
        return [Finding("stock-keras-model", f"{evidence}. {wrong}", fix)]
    fix = "DistributedModel(inputs, outputs), or DistributedModel.from_model(model, compiled=True)"
    converted = dataclasses.replace(case, build=lambda: DistributedModel.from_model(case.build(), compiled=True))
    trace, left = converted.retrained()
    if left.first is None and trace.error is None:
        return [Finding("stock-keras-model", f"{evidence}. As DistributedModel it is gone. {wrong}", fix)]
    one = runs.train(converted.build, case.batches, replicas=None, seed=case.seed, start=case.start)
    left = compare(one, trace, case.noise)
    rest = dataclasses.replace(converted, one=one, other=trace, found=left)
    finding = Finding("stock-keras-model", f"{evidence}. {wrong} As DistributedModel something is left", fix)
    if trace.error is not None:
        return [finding, _of_error(rest)]
    return [finding, *(_of_distributed_model(rest) if left.first else [])]


def _what_stock_does_wrong(case):
    model, batches = case.one.model, case.batches
    rows = [len(keras.tree.flatten(batch)[0]) for batch in batches]
    optimizer = model.optimizer
    masking = [layer for layer in private.all_layers(model) if getattr(layer, "mask_zero", False)]
    layers = private.all_layers(model)
    wrong = {
        "means of unequal parts are averaged (short batches)": any(count % case.replicas for count in rows),
        "sample weights are divided by each replica's own": any(len(batch) > 2 for batch in batches),
        "masked steps are counted per replica": bool(masking)
        or any(isinstance(x, keras.layers.Masking) for x in layers),
        "gradients are clipped before they are summed": any(
            getattr(optimizer, name, None) for name in ("clipnorm", "clipvalue", "global_clipnorm")
        ),
        "accumulation does not run": bool(getattr(optimizer, "gradient_accumulation_steps", None)),
        "all replicas draw the same numbers": bool(random_layers.drawing(model)),
        "batch statistics drift apart": any(isinstance(x, keras.layers.BatchNormalization) for x in layers),
    }
    found = [text for text, applies in wrong.items() if applies]
    return f"What stock Keras does here: {'; '.join(found)}." if found else ""


def _of_distributed_model(case):
    metrics_only = case.found.later <= {"log"}
    if metrics_only and not any(one.name == "loss" for one in case.found.differences):
        return looks.logs(case, case.found) or [_unexplained(case)]
    tried = suspects.of(case)
    if tried:
        trace, left = case.retrained(*(one.edit for one in tried))
        only_logs = left.later <= {"log"} and not any(one.name == "loss" for one in left.differences)
        if trace.error is None and (left.first is None or only_logs):
            return [*_needed(case, tried), *looks.logs(case, left)]
    seen = [
        *additivity.own_compute_loss(case),
        *additivity.added_losses(case),
        *looks.clipping(case),
        *looks.mixed_rows(case),
        *looks.states(case, case.found),
    ]
    if not seen and metrics_only:
        seen = looks.logs(case, case.found)
    likely = ("batch-norm-not-synchronised", "random-layers", "custom-loss-not-additive", "loss-over-the-whole-batch")
    for one in tried:
        if one.finding.cause in likely:
            evidence = "several causes at once: taking this one away alone leaves a difference"
            seen.append(dataclasses.replace(one.finding, evidence=evidence, certain=False))
    return seen or [_unexplained(case)]


def _needed(case, tried):
    """Returns those without which the difference comes back."""
    if len(tried) == 1:
        return [tried[0].finding]
    needed = []
    for one in tried:
        trace, left = case.retrained(*(other.edit for other in tried if other is not one))
        if trace.error is not None or not left.later <= {"log"} or any(d.name == "loss" for d in left.differences):
            needed.append(one.finding)
    return needed or [dataclasses.replace(one.finding, certain=False) for one in tried]


def _unexplained(case):
    hints = [text.splitlines()[0] for text in case.other.warnings if "What to do" in text]
    evidence = "; ".join(hints[:3]) or "all experiments left the difference"
    return Finding(
        "unexplained", evidence, "check(build_fn, data=...) with a smaller model, layer by layer", None, False
    )
