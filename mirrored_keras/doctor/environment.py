"""Findings about versions, environment variables, devices and collectives."""

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator, Mapping
from typing import Any

import mirrored_keras
from mirrored_keras import requirements
from mirrored_keras.doctor.findings import Finding, Report, finding_of_message, joined
from mirrored_keras.doctor.probing import probe
from mirrored_keras.errors import SetupError

#: What is asked for; those that training itself needs are errors where they are missing.
_PACKAGES = ("tensorflow", "keras", "h5py", "numpy", "keras-tuner", "tensorboard", "scipy", "scikit-learn")
_OPTIONAL = {"matplotlib": "pictures", "pandas": "tables of a search as data frames", "ray": "searches on Ray"}
_NEEDED_TO_TRAIN = ("tensorflow", "keras", "h5py", "numpy")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "KERAS_BACKEND", "TF_USE_LEGACY_KERAS", "TF_CONFIG", "TF_FORCE_GPU_ALLOW_GROWTH")


def environment_findings(*, replicas: int | None = None, timeout: float = 120.0) -> Report:
    """Examines this environment: versions, variables, devices, and whether a sum over replicas is one.

    Devices and collectives are tried in another process, so that a crash, an abort or a wait for ever is a finding.
    TensorFlow is not started in this one.

    Args:
        replicas: How many replicas are tried; every GPU, or two CPU replicas, if `None`.
        timeout: Seconds after which the other process counts as hanging.

    Returns:
        The report.

    Example:
        >>> from mirrored_keras.doctor import environment_findings
        >>> report = environment_findings(replicas=2)
        >>> report.passed
        True
    """
    versions = installed_versions()
    findings = [*version_findings({"Python": platform.python_version(), **versions}), *variable_findings(os.environ)]
    facts: dict[str, Any] = {"mirrored-keras": mirrored_keras.__version__, "Python": platform.python_version()}
    facts |= {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()}
    facts |= {name: version or "not installed" for name, version in versions.items()}
    facts |= {name: os.environ.get(name) for name in _VARIABLES}
    if not any(finding.severity == "error" for finding in findings):
        found, devices = probe(replicas=replicas, timeout=timeout)
        findings += found
        facts |= devices
    return Report(facts, tuple(findings))


def installed_versions() -> dict[str, str | None]:
    """Returns name -> version of the packages that matter, `None` where one is not installed."""
    versions: dict[str, str | None] = {}
    for name in (*_PACKAGES, *_OPTIONAL):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def version_findings(versions: Mapping[str, str | None]) -> list[Finding]:
    """Returns findings about what is installed.

    Args:
        versions: From `installed_versions`, or what stands for it.
    """
    findings = [*_missing(versions)]
    ranges = {
        "tensorflow": (requirements.MINIMUM_TENSORFLOW, requirements.NEWEST_TENSORFLOW),
        "keras": (requirements.MINIMUM_KERAS, requirements.NEWEST_KERAS),
        "keras-tuner": requirements.TESTED_KERAS_TUNER,
        "Python": requirements.TESTED_PYTHON,
    }
    for package, (oldest, newest) in ranges.items():
        version = versions.get(package)
        if version is None:
            continue
        subject = f"{package} {version}"
        tested = f"{'.'.join(map(str, oldest))} to {'.'.join(map(str, newest))}"
        try:
            requirements.check_version(package, version, oldest)
        except SetupError as error:
            severity = "error" if package in _NEEDED_TO_TRAIN else "warning"
            findings.append(finding_of_message(severity, subject, str(error)))
            continue
        if tuple(int(part) for part in version.split(".")[:2]) > newest:
            last = ".".join(map(str, newest))
            fix = f"python{last} -m venv .venv" if package == "Python" else f'pip install "{package}=={last}.*"'
            findings.append(Finding("warning", subject, f"It is newer than what the tests ran with, {tested}.", fix))
        else:
            findings.append(Finding("ok", subject, f"tested are {tested}"))
    return findings


def _missing(versions):
    for package in _PACKAGES:
        if versions.get(package) is None:
            needed = package in _NEEDED_TO_TRAIN
            reason = "It is not installed; training needs it." if needed else "It is not installed; searches need it."
            yield Finding("error" if needed else "warning", package, reason, f"pip install {package}")
    for package, use in _OPTIONAL.items():
        if versions.get(package) is None:
            yield Finding("note", package, f"It is not installed; only {use} need it.", f"pip install {package}")


def variable_findings(environment: Mapping[str, str]) -> list[Finding]:
    """Returns findings about environment variables.

    Args:
        environment: `os.environ`, or what stands for it.
    """
    findings = [*_of_tf_config(environment.get("TF_CONFIG"))]
    try:
        requirements.check_variables(environment)
    except SetupError as error:
        findings.append(finding_of_message("error", "Keras backend", str(error)))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and " " in visible:
        fix = f"export CUDA_VISIBLE_DEVICES={visible.replace(' ', '')}"
        findings.append(Finding("warning", "CUDA_VISIBLE_DEVICES", "A driver may stop reading at a blank.", fix))
    return findings


def _of_tf_config(text: str | None) -> Iterator[Finding]:
    """Says what is wrong with `TF_CONFIG`, as far as this process can know."""
    if not text:
        return
    fix = """export TF_CONFIG='{"cluster": {"worker": ["a:1234", "b:1234"]}, "task": {"type": "worker", "index": 0}}'"""
    try:
        config = json.loads(text)
    except ValueError as error:
        yield Finding("error", "TF_CONFIG", f"It is no JSON: {error}.", fix)
        return
    cluster, task = (config.get(part) if isinstance(config, dict) else None for part in ("cluster", "task"))
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        yield Finding("error", "TF_CONFIG", "It needs two dictionaries, `cluster` and `task`.", fix)
        return
    kind, index = task.get("type"), task.get("index")
    members = cluster.get(kind)
    if not isinstance(members, list):
        yield Finding("error", "TF_CONFIG", f"The task's type {kind!r} is not in the cluster: {joined(cluster)}.", fix)
    elif not isinstance(index, int) or not 0 <= index < len(members):
        reason = f"The task's index {index!r} is not one of the {len(members)} members of {kind!r}, counted from 0."
        yield Finding("error", "TF_CONFIG", reason, fix)
    elif sum(map(len, cluster.values())) > 1:
        reason = "It describes several processes; `mirrored_strategy` trains on the devices of this one alone."
        yield Finding("warning", "TF_CONFIG", reason, "unset TF_CONFIG")
    else:
        yield Finding("ok", "TF_CONFIG", "one process, which is in its cluster")
