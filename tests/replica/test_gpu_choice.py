"""Physical ids, UUIDs and free memory against `CUDA_VISIBLE_DEVICES`, without any GPU."""

import subprocess

import pytest

from mirrored_keras.replica import gpu_choice
from replica.fake_gpus import nvidia_smi, uuid_of

EIGHT = gpu_choice.query_gpus(nvidia_smi([20000] * 8))


def shown(value, installed):
    environment = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    gpus = gpu_choice.visible_gpus(environment, installed)
    return None if gpus is None else [gpu.index if gpu.index is not None else gpu.uuid for gpu in gpus]


def test_query_reads_what_nvidia_smi_prints():
    assert gpu_choice.query_gpus(nvidia_smi([300, 20000])) == [
        gpu_choice.Gpu(0, uuid_of(0), 300, 24576),
        gpu_choice.Gpu(1, uuid_of(1), 20000, 24576),
    ]


def test_query_of_memory_that_is_not_known():
    gpus = gpu_choice.query_gpus(nvidia_smi(["[N/A]"], total="[N/A]"))
    assert gpus == [gpu_choice.Gpu(0, uuid_of(0), None, None)]
    assert gpu_choice.query_gpus(nvidia_smi([])) is None


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("nvidia-smi"),
        PermissionError("nvidia-smi"),
        subprocess.TimeoutExpired("nvidia-smi", 20),
        subprocess.CalledProcessError(9, "nvidia-smi"),
    ],
)
def test_query_without_an_answer(error):
    def run(*arguments, **options):
        assert options["timeout"] > 0
        raise error

    assert gpu_choice.query_gpus(run) is None


@pytest.mark.parametrize(
    ("value", "order"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("5, 6", [5, 6]),
        (" 6 ,5 ", [6, 5]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,2,-1,1", [0, 2]),
        ("0,9,1", [0]),
        ("3,3", []),
        (f"{uuid_of(4)}, {uuid_of(2)}", [4, 2]),
        ("GPU-7932,GPU-0", [7, 0]),
        ("gpu-7932F937", [7]),
        ("GPU-", []),
        ("1,,2", [1]),
        ("MIG-aaaa-bbbb", ["MIG-aaaa-bbbb"]),
    ],
)
def test_visible_devices(value, order):
    assert shown(value, EIGHT) == order


@pytest.mark.parametrize(("value", "order"), [(None, None), ("5, 6", [5, 6]), ("GPU-ab", ["GPU-ab"]), ("-1", [])])
def test_visible_devices_without_nvidia_smi(value, order):
    assert shown(value, None) == order


def test_blanks():
    assert gpu_choice.without_blanks(" 5, 6 ") == "5,6"
    assert gpu_choice.without_blanks("") == ""


@pytest.mark.parametrize(
    ("amount", "expected"),
    [(2048, 2048), ("2048", 2048), ("2GB", 1908), ("2GiB", 2048), ("1.5 gib", 1536), ("500MB", 477), ("0", 0)],
)
def test_amount_of_memory(amount, expected):
    assert gpu_choice.mebibytes(amount) == expected


def test_memory_that_nobody_knows_is_enough():
    gpus = [gpu_choice.Gpu(0, free=100), gpu_choice.Gpu(1), gpu_choice.Gpu(2, free=3000), gpu_choice.Gpu(3, free=10)]
    assert gpu_choice.with_free_memory(gpus, [0, 1, 2, 3], 2000, []) == [1, 2]
    assert gpu_choice.with_free_memory(gpus, [0, 2, 3], 2000, [3]) == [2, 3]


def test_names_for_cuda():
    assert [gpu.cuda_name for gpu in (gpu_choice.Gpu(5, "GPU-a"), gpu_choice.Gpu(uuid="GPU-a"), gpu_choice.Gpu())] == [
        "5",
        "GPU-a",
        "...",
    ]
