"""What the user reads when devices, backend or versions are not there: the full text."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf

from mirrored_keras import SetupError, mirrored_strategy, requirements

WAYS = 'What to do: mirrored_strategy(2), mirrored_strategy("auto") or mirrored_strategy(["GPU:0", "GPU:1"])'

needs_no_gpu = pytest.mark.skipif(
    bool(tf.config.list_physical_devices("GPU")), reason="the text names CPU devices; this machine has GPUs"
)


def text_of(function):
    with pytest.raises(SetupError) as caught:
        function()
    return str(caught.value)


@pytest.mark.parametrize("devices", ["gpu", [], 2.0, True, {"GPU:0"}])
def test_devices_of_another_type(devices):
    assert text_of(lambda: mirrored_strategy(devices)) == (
        f'`devices` is a number of replicas, a list of devices, "auto" or None.\nReceived: devices={devices!r}\n{WAYS}'
    )


@pytest.mark.parametrize("devices", [0, -2])
def test_no_replica(devices):
    assert text_of(lambda: mirrored_strategy(devices)) == (
        f"`devices` must be a positive number of replicas.\nReceived: devices={devices}\n{WAYS}"
    )


@needs_no_gpu
def test_more_replicas_than_devices():
    tf.zeros(1)  # TensorFlow starts
    assert text_of(lambda: mirrored_strategy(99)) == (
        "99 CPU replicas need 99 logical CPU devices, and TensorFlow has started with 8; they can only be made before "
        "its first operation.\n"
        "Received: devices=99\n"
        "What to do: strategy = mirrored_strategy(99)   # before any tensor, layer or dataset is made"
    )


@needs_no_gpu
def test_more_replicas_than_a_machine_holds():
    assert text_of(lambda: mirrored_strategy(10**6)) == (
        f"A machine without a GPU makes at most 256 CPU replicas.\nReceived: devices=1000000\n{WAYS}"
    )


@needs_no_gpu
def test_unknown_device():
    text = text_of(lambda: mirrored_strategy(["GPU:7"]))
    assert text.startswith("Every device must exist and be named once; unknown: ['GPU:7'], there are: ['CPU:0'")
    assert "Received: devices=['GPU:7']\n" in text


@needs_no_gpu
def test_physical_id_without_any_gpu():
    assert text_of(lambda: mirrored_strategy([3])) == (
        "GPUs are chosen by physical id or UUID, each of them once, among those that `CUDA_VISIBLE_DEVICES` lets "
        "through; these are: none.\n"
        "Received: devices=[3], not found or not unique: [3]\n"
        "What to do: mirrored_strategy(2)   # CPU replicas, without any GPU"
    )


@pytest.mark.parametrize("devices", [[0, "GPU:1"], ["GPU-8932f937", "CPU:0"], [True], [1.0]])
def test_lists_of_two_kinds(devices):
    assert text_of(lambda: mirrored_strategy(devices)) == (
        "A list of devices has physical ids and UUIDs of GPUs, or names of TensorFlow, not both.\n"
        f"Received: devices={devices!r}\n{WAYS}"
    )


@pytest.mark.parametrize("amount", ["much", "2TB", -1, 1.5, True, "2KB"])
def test_amounts_of_memory(amount):
    assert text_of(lambda: mirrored_strategy(1, min_free_memory=amount)) == (
        "`min_free_memory` is a number of MiB, or text with a unit: MB, MiB, GB or GiB.\n"
        f"Received: min_free_memory={amount!r}\n"
        'What to do: mirrored_strategy("auto", min_free_memory="2GB")'
    )


def test_memory_of_named_devices():
    assert "not by name.\nReceived: devices=['CPU:0']" in text_of(
        lambda: mirrored_strategy(["CPU:0"], min_free_memory="1GB")
    )


def test_device_named_twice():
    assert "named once" in text_of(lambda: mirrored_strategy(["CPU:0", "/cpu:0"]))


def test_strategies_that_exist():
    assert mirrored_strategy(3, cross_device_ops=tf.distribute.ReductionToOneDevice()).num_replicas_in_sync == 3
    assert mirrored_strategy(["CPU:1", "/device:CPU:4"]).extended.worker_devices[1].endswith("CPU:4")


@pytest.mark.parametrize(
    ("package", "version", "minimum"), [("keras", "3.4.1", (3, 12)), ("tensorflow", "2.16.1", (2, 21))]
)
def test_old_version(package, version, minimum):
    oldest = f"{minimum[0]}.{minimum[1]}"
    assert text_of(lambda: requirements.check_version(package, version, minimum)) == (
        f"mirrored_keras is tested with {package} {oldest} and newer, and relies on what came with it.\n"
        f"Received: {package}={version}\n"
        f'What to do: pip install --upgrade "{package}>={oldest}"'
    )


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("KERAS_BACKEND", "jax", "SetupError: mirrored_keras needs Keras 3 on the TensorFlow backend."),
        ("TF_USE_LEGACY_KERAS", "1", "is Keras 2 while TF_USE_LEGACY_KERAS is set."),
    ],
)
def test_another_keras(name, value, line):
    result = subprocess.run(
        [sys.executable, "-c", "import mirrored_keras; mirrored_keras.DistributedModel"],
        env={**os.environ, name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert line in result.stderr
    assert f"Received: {name}='{value}'" in result.stderr
