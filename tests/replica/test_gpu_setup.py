"""`mirrored_strategy` on machines of up to eight GPUs that are not there: what is shown, hidden, touched and said."""

import logging
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from mirrored_keras import SetupError, mirrored_strategy
from mirrored_keras.replica import devices, gpu_choice, gpu_setup
from replica.fake_gpus import FakeTensorFlow, nvidia_smi, uuid_of


@pytest.fixture
def machine(monkeypatch, caplog):
    """A function that makes the GPUs, TensorFlow and the environment; returns the fake TensorFlow."""
    caplog.set_level(logging.INFO)
    query = gpu_choice.query_gpus

    def make(free, *, visible=None, tool=True, listed=False, cuda=None):
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        installed = query(nvidia_smi(free))
        monkeypatch.setattr(gpu_choice, "query_gpus", lambda: installed if tool else None)
        fake = FakeTensorFlow(cuda or (lambda: gpu_choice.visible_gpus(os.environ, installed)))
        if listed:
            fake.list()
        monkeypatch.setattr(devices, "tf", fake)
        monkeypatch.setattr(gpu_setup, "tf", fake)
        monkeypatch.setattr(gpu_setup, "_CHOSEN", set())
        monkeypatch.setattr(gpu_setup, "_HIDDEN", [])
        return fake

    return make


def grown(fake):
    return sorted(fake.facts[fake.gpus.index(gpu)].index for gpu, enabled in fake.growth.items() if enabled)


def text_of(*arguments, **options):
    with pytest.raises(SetupError) as caught:
        mirrored_strategy(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "names", "touched"),
    [
        (None, ["GPU:0", "GPU:1", "GPU:2", "GPU:3"], [0, 1, 2, 3]),
        ("auto", ["GPU:0", "GPU:1"], [1, 3]),
        (2, ["GPU:0", "GPU:1"], [0, 1]),
        ([2], ["GPU:0"], [2]),
        ([3, 1], ["GPU:1", "GPU:0"], [1, 3]),
        ([uuid_of(3)], ["GPU:0"], [3]),
        (["GPU-1932"], ["GPU:0"], [1]),
        ([0, "gpu-2"], ["GPU:0", "GPU:1"], [0, 2]),
        (["GPU:1"], ["GPU:1"], [0, 1, 2, 3]),
        (["CPU:0", "CPU:1"], ["CPU:0", "CPU:1"], []),
    ],
)
@pytest.mark.parametrize("listed", [False, True], ids=["first", "after_a_list"])
def test_only_the_chosen_gpus_are_touched(machine, wanted, names, touched, listed):
    fake = machine([100, 20000, 100, 20000], listed=listed)
    assert mirrored_strategy(wanted) == names
    assert fake.touched() == grown(fake) == touched
    by_name = wanted in (["GPU:1"], ["CPU:0", "CPU:1"])  # CUDA's variable is left alone
    assert fake.seen() == ([0, 1, 2, 3] if listed or by_name else touched)
    assert listed <= ("CUDA_VISIBLE_DEVICES" not in os.environ)


def test_physical_ids_after_visible_devices(machine, caplog):
    fake = machine([20000] * 5 + [24111, 24000, 5], visible="5, 6")
    assert mirrored_strategy([5, 6]) == ["GPU:0", "GPU:1"]
    assert fake.touched() == [5, 6]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,6"
    assert "GPU 5 (24111 MiB free) is GPU:0, GPU 6 (24000 MiB free) is GPU:1" in caplog.text


@pytest.mark.parametrize(("wanted", "level"), [([0, 1], "INFO"), ([1], "WARNING"), (None, "INFO")])
def test_two_numbers_for_one_gpu_are_shown(machine, caplog, wanted, level):
    machine([20000, 20000])
    mirrored_strategy(wanted)
    (record,) = caplog.records
    assert record.levelname == level and "under TensorFlow's names: GPU" in record.getMessage()


@pytest.mark.parametrize("listed", [False, True])
def test_one_of_two_visible_ids_in_another_order(machine, caplog, listed):
    fake = machine([20000] * 8, visible="6,5", listed=listed)
    assert mirrored_strategy([5]) == ["GPU:0"]
    assert fake.touched() == [5]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ("6,5" if listed else uuid_of(5))
    assert "GPU 5 (20000 MiB free) is GPU:0" in caplog.text


def test_gpus_that_are_not_there(machine):
    fake = machine([20000] * 8, visible="5,6")
    assert text_of([5, 7]) == (
        "GPUs are chosen by physical id or UUID, each of them once, among those that `CUDA_VISIBLE_DEVICES` lets "
        f"through; these are: GPU 5 (20000 MiB free), {uuid_of(5)}, GPU 6 (20000 MiB free), {uuid_of(6)}.\n"
        "Received: devices=[5, 7], not found or not unique: [7]\n"
        "What to do: mirrored_strategy([5, 6])"
    )
    assert "not unique: [5]" in text_of([5, 5])
    assert "not unique: ['GPU-']" in text_of(["GPU-"])
    assert not fake.touched()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "5,6"


def test_more_gpus_than_there_are(machine):
    machine([20000, 20000])
    assert text_of(3) == (
        "There are only 2 GPUs; every replica needs one of its own.\n"
        "Received: devices=3, GPUs: GPU 0 (20000 MiB free), GPU 1 (20000 MiB free)\n"
        "What to do: mirrored_strategy(2), or CUDA_VISIBLE_DEVICES=-1 for CPU replicas"
    )


def test_tensorflow_has_started(machine):
    fake = machine([20000] * 4)
    fake.start()
    assert text_of([1, 2]) == (
        "GPUs are chosen before TensorFlow's first operation, which takes memory on every GPU that it sees; it has "
        "started with others.\n"
        "Received: devices=[1, 2], TensorFlow started with 4 of 4 GPUs\n"
        "What to do: CUDA_VISIBLE_DEVICES=1,2 python script.py   # or mirrored_strategy before any tensor, layer or "
        "dataset is made"
    )
    assert "CUDA_VISIBLE_DEVICES=0,1 python" in text_of(2)
    assert mirrored_strategy() == ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]


def test_tensorflow_has_started_and_taken_the_memory(machine):
    machine([10, 10]).start()
    assert text_of("auto").startswith("GPUs are chosen before TensorFlow's first operation")


def test_a_lone_gpu_that_this_process_has_taken(machine):
    machine([10]).start()
    assert mirrored_strategy("auto") == ["GPU:0"]


@pytest.mark.parametrize("listed", [False, True])
def test_a_second_strategy_uses_a_part_of_the_first(machine, listed):
    fake = machine([20000] * 4, listed=listed)
    assert mirrored_strategy([1, 2, 3]) == ["GPU:0", "GPU:1", "GPU:2"]
    assert mirrored_strategy(2) == ["GPU:0", "GPU:1"]
    assert mirrored_strategy([3]) == ["GPU:2"]
    assert fake.touched() == [1, 2, 3]
    assert "CUDA_VISIBLE_DEVICES=0 python" in text_of([0])
    assert text_of([9]).startswith("GPUs are chosen by physical id or UUID")


def test_a_second_automatic_choice_is_the_first_one(machine, monkeypatch):
    machine([20000, 100, 20000])
    assert mirrored_strategy("auto") == ["GPU:0", "GPU:1"]
    full = [gpu_choice.Gpu(index, uuid_of(index), 0, 24576) for index in range(3)]
    monkeypatch.setattr(gpu_choice, "query_gpus", lambda: full)
    assert mirrored_strategy("auto") == ["GPU:0", "GPU:1"]


@pytest.mark.parametrize(
    ("wanted", "amount", "touched"),
    [("auto", "10GB", [2]), ("auto", 100, [0, 1, 2]), (None, "10GB", [2]), (1, "10GB", [2]), ([1], 1000, [1])],
)
def test_free_memory(machine, wanted, amount, touched):
    fake = machine([500, 5000, 20000])
    mirrored_strategy(wanted, min_free_memory=amount)
    assert fake.touched() == touched


@pytest.mark.parametrize("wanted", ["auto", 2, [0, 1]])
def test_too_little_memory(machine, wanted):
    machine([500, 700])
    assert text_of(wanted, min_free_memory=600 if wanted != "auto" else None) == (
        f"Every replica needs a GPU with {600 if wanted != 'auto' else 1908} MiB of free memory; there are: "
        "GPU 0 (500 MiB free), GPU 1 (700 MiB free).\n"
        f"Received: devices={wanted!r}\n"
        "What to do: nvidia-smi   # shows who uses them; or a smaller min_free_memory"
    )


def test_without_nvidia_smi_all_gpus_are_taken(machine, caplog):
    fake = machine([0, 0], tool=False)
    assert mirrored_strategy("auto") == ["GPU:0", "GPU:1"]
    assert "nvidia-smi does not answer" in caplog.text
    assert fake.touched() == [0, 1]


def test_numbers_that_cannot_be_trusted(machine, caplog):
    machine([20000] * 8, visible="5,6", cuda=lambda: [gpu_choice.Gpu(i) for i in range(8)])
    assert text_of([5]).startswith("Physical ids and UUIDs need a TensorFlow that sees the GPUs which")
    assert len(mirrored_strategy("auto")) == 8
    assert "see other GPUs" in caplog.text


@pytest.mark.parametrize("growth", [None, True, False])
def test_memory_growth(machine, growth):
    fake = machine([20000] * 2)
    mirrored_strategy([1], memory_growth=growth)
    assert list(fake.growth.values()) == [growth is not False]


def test_memory_growth_after_the_start(machine, caplog):
    machine([20000]).start()
    assert mirrored_strategy() == ["GPU:0"]
    assert "memory growth stays as it is" in caplog.text
    assert text_of(memory_growth=True) == (
        "Memory growth is set before TensorFlow's first operation, and excludes a memory limit.\n"
        "Received: memory_growth=True, /physical_device:GPU:0: Physical devices cannot be modified after being "
        "initialized\n"
        "What to do: mirrored_strategy(..., memory_growth=True)   # before any tensor, layer or dataset is made"
    )


def test_memory_limits_are_kept(machine):
    fake = machine([20000] * 3, listed=True)
    fake.limits[fake.gpus[0].name] = [object(), object()]
    fake.visible = fake.gpus[:2]  # hidden by hand, and left hidden
    assert gpu_setup.choose(None, min_free_memory=None, memory_growth=None) == ["GPU:0", "GPU:2"]
    assert grown(fake) == [1]


def test_unlike_gpus_are_warned_about(machine, monkeypatch, caplog):
    machine([20000, 20000])
    unlike = [gpu_choice.Gpu(0, uuid_of(0), 10, 8000), gpu_choice.Gpu(1, uuid_of(1), 10, 24000)]
    monkeypatch.setattr(gpu_choice, "query_gpus", lambda: unlike)
    mirrored_strategy([0, 1])
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in caplog.text


@pytest.mark.parametrize("wanted", [None, "auto", 3])
def test_hidden_gpus_leave_the_cpu(machine, wanted):
    fake = machine([20000] * 2, visible="-1")
    assert mirrored_strategy(wanted) == [f"CPU:{i}" for i in range(wanted if wanted == 3 else 1)]
    assert not fake.touched()


def test_a_tensorflow_without_gpus(machine, caplog):
    machine([20000] * 2, cuda=list)
    assert mirrored_strategy("auto") == ["CPU:0"]
    assert "nvidia-smi sees 2 GPUs, and TensorFlow none" in caplog.text


def test_parts_of_a_gpu(machine):
    fake = machine([20000], visible="MIG-a,MIG-b")
    assert mirrored_strategy(["MIG-b"]) == ["GPU:0"]
    assert [fact.uuid for fact in fake.facts] == ["MIG-b"]


def run_script(script):
    """Runs a script in a process whose TensorFlow has not started."""
    path = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_cpu_devices_by_one_call_after_seeds_and_policies():
    result = run_script(
        "import keras; keras.utils.set_random_seed(1); keras.mixed_precision.set_global_policy('float32')\n"
        "from mirrored_keras import mirrored_strategy\n"
        "print(mirrored_strategy(['CPU:0', 'CPU:1', 'CPU:2']).num_replicas_in_sync)"
    )
    assert result.stdout == "3\n", result.stderr[-2000:]


@pytest.mark.skipif(
    not tf.config.list_physical_devices("GPU"), reason="needs a real GPU: its memory is to grow as it is needed"
)
def test_memory_of_a_real_gpu_grows():
    result = run_script(
        "import os\n"
        "from mirrored_keras import mirrored_strategy\n"
        "from mirrored_keras.replica import gpu_choice\n"
        "import tensorflow as tf\n"
        "gpu = gpu_choice.visible_gpus(os.environ, gpu_choice.query_gpus())[0]\n"
        "mirrored_strategy([gpu.uuid])\n"
        "assert tf.ones(2).device.endswith('GPU:0')\n"
        "assert tf.config.experimental.get_memory_growth(tf.config.list_physical_devices('GPU')[0])\n"
        "after = {gpu.uuid: gpu.free for gpu in gpu_choice.query_gpus()}\n"
        "assert gpu.free - after[gpu.uuid] < 2000\n"
    )
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.skipif(
    len(tf.config.list_physical_devices("GPU")) < 2, reason="needs two real GPUs: TensorFlow must hide one of them"
)
def test_real_gpus():
    result = run_script(
        "import os\n"
        "from mirrored_keras import mirrored_strategy\n"
        "from mirrored_keras.replica import gpu_choice\n"
        "import tensorflow as tf\n"
        "gpus = gpu_choice.visible_gpus(os.environ, gpu_choice.query_gpus())\n"
        "mirrored_strategy([gpus[1].index])\n"
        "assert tf.ones(2).device.endswith('GPU:0') and len(tf.config.list_logical_devices('GPU')) == 1\n"
        "after = {gpu.uuid: gpu.free for gpu in gpu_choice.query_gpus()}\n"
        "used = [gpu.free - after[gpu.uuid] for gpu in gpus]\n"
        "assert used[1] > 100 and max(used[:1] + used[2:]) < 20, used\n"
    )
    assert result.returncode == 0, result.stderr[-2000:]
