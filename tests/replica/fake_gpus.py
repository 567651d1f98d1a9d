"""A machine with GPUs that is not there: what `nvidia-smi` prints, and the part of TensorFlow that chooses devices."""

import logging
import types
from typing import NamedTuple


class PhysicalDevice(NamedTuple):
    name: str
    device_type: str = "GPU"


class FakeTensorFlow:
    """`tf.config` with TensorFlow's rules: it lists GPUs once; after `start()`, visibility and growth cannot change.

    Args:
        shown: A function that returns the GPUs which CUDA would show now, as `gpu_choice.Gpu`.
    """

    def __init__(self, shown):
        self.shown = shown
        self.facts = None
        self.growth = {}
        self.limits = {}
        self.started = False
        self.config = types.SimpleNamespace(
            list_physical_devices=self.list,
            get_visible_devices=lambda kind: [gpu for gpu in self.list(kind) if gpu in self.visible],
            set_visible_devices=self._set_visible,
            get_logical_device_configuration=lambda device: self.limits.get(device.name),
            set_logical_device_configuration=self._set_logical,
            list_logical_devices=self._logical,
            LogicalDeviceConfiguration=object,
            experimental=types.SimpleNamespace(set_memory_growth=self._set_growth),
            threading=types.SimpleNamespace(
                get_inter_op_parallelism_threads=lambda: 0, set_inter_op_parallelism_threads=lambda count: None
            ),
        )
        self.distribute = types.SimpleNamespace(MirroredStrategy=self._strategy)

    def list(self, kind="GPU"):
        """Lists devices; the first time, CUDA reads its variable."""
        if self.facts is None:
            self.facts = self.shown()
            self.gpus = [PhysicalDevice(f"/physical_device:GPU:{i}") for i in range(len(self.facts))]
            self.visible = list(self.gpus)
        return list(self.gpus) if kind == "GPU" else [PhysicalDevice("CPU", "CPU")]

    def start(self):
        self.list()
        self.started = True

    def get_logger(self):
        return logging.getLogger("fake_tensorflow")

    def seen(self):
        """Returns the physical ids of the GPUs that CUDA shows."""
        return [fact.index for fact in self.facts]

    def touched(self):
        """Returns the physical ids of the GPUs on which TensorFlow takes memory."""
        return [f.index for f, gpu in zip(self.facts, self.gpus, strict=True) if gpu in self.visible and self.started]

    def _strategy(self, names, cross_device_ops=None):
        self.start()
        assert {name for name in names if name.startswith("GPU")} <= {f"GPU:{i}" for i in range(len(self.visible))}
        return names

    def _set_visible(self, devices, kind):
        assert kind == "GPU"
        self.list()
        self._change(devices != self.visible, "Visible devices")
        self.visible = list(devices)

    def _set_growth(self, device, enable):
        if device.name in self.limits:
            raise ValueError("Cannot set memory growth on device when virtual devices configured")
        self._change(self.growth.get(device) != enable, "Physical devices")
        self.growth[device] = enable

    def _set_logical(self, device, configurations):
        self._change(True, "Virtual devices")
        self.limits[device.name] = configurations

    def _logical(self, kind=None):
        self.start()
        cpus = len(self.limits.get("CPU", [None]))
        named = [PhysicalDevice(f"/device:CPU:{i}", "CPU") for i in range(cpus)]
        named += [PhysicalDevice(f"/device:GPU:{i}", "GPU") for i in range(len(self.visible))]
        return [device for device in named if kind in (None, device.device_type)]

    def _change(self, changes, what):
        if changes and self.started:
            raise RuntimeError(f"{what} cannot be modified after being initialized")


def uuid_of(index):
    return f"GPU-{index}932f937-d72c-4106-c12f-20bd9faed9f6"


def nvidia_smi(free, total=24576):
    """Returns what stands for `subprocess.run`: GPUs with so many MiB free each."""
    lines = [f"{index}, {uuid_of(index)}, {mib}, {total}" for index, mib in enumerate(free)]
    return lambda *arguments, **options: types.SimpleNamespace(stdout="\n".join(lines) + "\n")
