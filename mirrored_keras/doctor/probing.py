"""Runs `doctor/trial.py` in another process, and reads what came of it: devices, memory, a sum over replicas."""

import json
import os
import subprocess
import sys
from typing import Any

from mirrored_keras.doctor.findings import Finding, finding_of_message, joined

#: Marks the line of the other process that is meant for this one.
MARK = "MIRRORED_KERAS_TRIAL "
_LOW_MEMORY = 2048  # MiB free; what `mirrored_strategy("auto")` asks for


def probe(*, replicas: int | None, timeout: float, command: tuple[str, ...] = ()) -> tuple[list[Finding], dict]:
    """Tries devices and collectives in another process.

    Args:
        replicas: How many; every GPU, or two CPU replicas, if `None`.
        timeout: Seconds.
        command: What is run; the package's own trial if empty.

    Returns:
        Findings, and facts by name.
    """
    command = command or (sys.executable, "-m", "mirrored_keras.doctor.trial", str(replicas or 0))
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    # the package may have been imported from a folder that only this process knows
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    subject, fix = "collectives", "mirrored-keras doctor --replicas 1   # then 2, to see which number it depends on"
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env=environment, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        reason = f"A sum over replicas, in a process of its own, had not ended after {timeout:g} seconds."
        return [Finding("error", subject, reason, fix)], {}
    answers = [line for line in result.stdout.splitlines() if line.startswith(MARK)]
    if not answers:
        last = next((line for line in reversed(result.stderr.splitlines()) if line.strip()), "no message")
        reason = f"The process that tried a sum over replicas ended with code {result.returncode}: {last}"
        return [Finding("error", subject, reason, fix)], {}
    return findings_of(json.loads(answers[-1].removeprefix(MARK)))


def findings_of(answer: dict[str, Any]) -> tuple[list[Finding], dict[str, Any]]:
    """Turns the answer of the other process into findings and facts.

    Args:
        answer: See `trial.examine`.

    Returns:
        Findings, and facts by name.
    """
    findings = [*_of_gpus(answer)]
    if answer.get("problem"):
        subject = answer.get("problem_subject", "collectives")
        findings.append(finding_of_message("error", subject, answer["problem"]))
    if answer.get("sums"):
        reason = f"{answer['replicas']} replicas on {joined(answer['devices'])} summed {answer['sums']}"
        findings.append(Finding("ok", "collectives", f"{reason}, by {answer['engine']}"))
    threads, cores = answer["inter_op_threads"], answer["cores"]
    facts = {
        "GPUs of the machine": answer["installed"],
        "GPUs of TensorFlow": answer["gpus"],
        "CPU devices": answer["cpus"],
        "replicas tried": answer.get("replicas"),
        "inter-op threads": threads or f"{cores}, one per core",
    }
    return findings, facts


def _of_gpus(answer):
    installed, seen = answer["installed"], answer["gpus"]
    if installed and not seen and answer["visible"]:
        fix = 'pip install "tensorflow[and-cuda]"'
        reason = f"The driver shows {len(installed)} GPUs, and TensorFlow sees none: the CPU trains."
        yield Finding("warning", "GPUs", reason, fix)
    elif installed and not seen:
        reason = "CUDA_VISIBLE_DEVICES hides every GPU of the machine: the CPU trains."
        yield Finding("note", "GPUs", reason, "unset CUDA_VISIBLE_DEVICES")
    elif seen:
        pairs = [f"{physical} is {name}" for physical, name in zip(answer["visible"] or seen, seen, strict=False)]
        yield Finding("ok", "GPUs", joined(pairs))
    else:
        yield Finding("ok", "GPUs", "the machine has none: replicas are parts of the CPU")
    low = [str(free["name"]) for free in answer["free"] if free["free"] is not None and free["free"] < _LOW_MEMORY]
    if low:
        reason = f"Less than 2 GB is free on {joined(low)}: another process holds the rest."
        yield Finding("warning", "GPU memory", reason, 'mirrored_strategy("auto")   # passes over them')
    if seen and not all(answer["memory_growth"]):
        reason = "TensorFlow takes all memory of every GPU at once, unless memory growth is on."
        yield Finding(
            "warning", "memory growth", reason, "strategy = mirrored_strategy()   # before any tensor is made"
        )
