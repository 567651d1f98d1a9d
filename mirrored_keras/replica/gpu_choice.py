"""Which GPUs are meant: physical ids, UUIDs and free memory against what `CUDA_VISIBLE_DEVICES` lets through.

Nothing here asks TensorFlow, so that nothing here can start it: every fact is an argument.
"""

import dataclasses
import re
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence

from mirrored_keras.errors import SetupError, message

#: What a GPU must have free for `devices="auto"`: less is what a forgotten notebook leaves.
DEFAULT_FREE_MEMORY = "2GB"
QUERY = ("nvidia-smi", "--query-gpu=index,uuid,memory.free,memory.total", "--format=csv,noheader,nounits")
_QUERY_SECONDS = 20  # a driver without persistence takes seconds to wake
_UNITS = {"": 2**20, "MB": 10**6, "MIB": 2**20, "GB": 10**9, "GIB": 2**30}


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU as the driver knows it; `None` stands for what could not be found out.

    Attributes:
        index: Its physical id, the number that `nvidia-smi` shows.
        uuid: Its UUID, "GPU-..." or "MIG-...".
        free: Free memory in MiB.
        total: Memory in MiB.
    """

    index: int | None = None
    uuid: str | None = None
    free: int | None = None
    total: int | None = None

    def __str__(self) -> str:
        name = f"GPU {self.index}" if self.index is not None else str(self.uuid)
        return name if self.free is None else f"{name} ({self.free} MiB free)"

    @property
    def cuda_name(self) -> str:
        """How `CUDA_VISIBLE_DEVICES` names it; "..." if nobody knows."""
        if self.index is not None:
            return str(self.index)
        return str(self.uuid) if is_uuid(self.uuid) else "..."


def query_gpus(run: Callable = subprocess.run) -> list[Gpu] | None:
    """Asks `nvidia-smi` for ids, UUIDs and memory; another process, so that no GPU is touched by this one.

    Args:
        run: `subprocess.run`, or what stands for it.

    Returns:
        The GPUs of the machine by physical id; `None` where the tool is absent, fails or does not answer.
    """
    try:
        result = run(QUERY, capture_output=True, text=True, timeout=_QUERY_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    gpus = []
    for line in result.stdout.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 4 and fields[0].isdigit():
            free, total = (int(field) if field.isdigit() else None for field in fields[2:])  # "[N/A]" on some
            gpus.append(Gpu(int(fields[0]), fields[1], free, total))
    return sorted(gpus, key=lambda gpu: gpu.index or 0) or None


def without_blanks(visible_devices: str) -> str:
    """Returns a value of `CUDA_VISIBLE_DEVICES` as the driver is sure to read it, "5,6" for "5, 6"."""
    return ",".join(part.strip() for part in visible_devices.split(","))


def visible_gpus(environment: Mapping[str, str], installed: Sequence[Gpu] | None) -> list[Gpu] | None:
    """Lists the GPUs that CUDA shows to this process, in the order in which TensorFlow numbers them.

    Like the driver, it stops at the first entry that is no GPU ("-1" hides what follows), and shows none where one
    is named twice.

    Args:
        environment: `os.environ`, or what stands for it.
        installed: What `query_gpus` has found.

    Returns:
        One `Gpu` per GPU of TensorFlow; `None` if nobody knows them.
    """
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return None if installed is None else list(installed)
    gpus = []
    for entry in without_blanks(value).split(","):
        gpu = _entry(entry, installed)
        if gpu is None:
            break
        gpus.append(gpu)
    return gpus if len(set(gpus)) == len(gpus) else []


def _entry(entry, installed):
    if entry.upper().startswith("MIG-"):
        return Gpu(uuid=entry)  # a part of a GPU, which the query does not list
    if entry.isdigit():
        if installed is None:
            return Gpu(int(entry))
        return next((gpu for gpu in installed if gpu.index == int(entry)), None)
    if not entry.upper().startswith("GPU-"):
        return None
    if installed is None:
        return Gpu(uuid=entry)
    fitting = [gpu for gpu in installed if _has_uuid(gpu, entry)]
    return fitting[0] if len(fitting) == 1 else None


def _has_uuid(gpu, prefix):
    return gpu.uuid is not None and gpu.uuid.upper().startswith(prefix.upper())


def is_uuid(device: object) -> bool:
    """Tells UUIDs, "GPU-8932f937" or "MIG-...", from names of TensorFlow, "GPU:0"."""
    return isinstance(device, str) and device.upper().startswith(("GPU-", "MIG-"))


def positions_of(devices: Sequence[int | str], visible: Sequence[Gpu]) -> list[int]:
    """Finds TensorFlow's numbers of GPUs that were named by physical id or UUID.

    Args:
        devices: Physical ids, and UUIDs or their first characters.
        visible: What `visible_gpus` returns.

    Returns:
        For every device, its place in `visible`.

    Raises:
        SetupError: One is not visible, named twice, or its UUID fits several.
    """
    positions, missing = [], []
    for device in devices:
        if isinstance(device, str):
            fitting = [i for i, gpu in enumerate(visible) if _has_uuid(gpu, device)]
        else:
            fitting = [i for i, gpu in enumerate(visible) if gpu.index == device]
        if len(fitting) != 1 or fitting[0] in positions:
            missing.append(device)
        positions.extend(fitting[:1])
    if missing:
        shown = ", ".join(f"{gpu}, {gpu.uuid}" if gpu.uuid and gpu.index is not None else str(gpu) for gpu in visible)
        ids = ", ".join(repr(gpu.uuid if gpu.index is None else gpu.index) for gpu in visible)
        raise SetupError(
            message(
                "GPUs are chosen by physical id or UUID, each of them once, among those that "
                f"`CUDA_VISIBLE_DEVICES` lets through; these are: {shown or 'none'}.",
                f"devices={list(devices)!r}, not found or not unique: {missing!r}",
                f"mirrored_strategy([{ids}])" if visible else "mirrored_strategy(2)   # CPU replicas, without any GPU",
            )
        )
    return positions


def mebibytes(amount: int | str) -> int:
    """Reads an amount of memory.

    Args:
        amount: A number of MiB, or text like "2GB", "1.5 GiB", "500MB".

    Returns:
        MiB, rounded up.

    Raises:
        SetupError: It is something else.
    """
    text = str(amount).strip().upper()
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?B)?", text)
    if isinstance(amount, bool) or not isinstance(amount, (int, str)) or not found or (found[2] or "") not in _UNITS:
        raise SetupError(
            message(
                "`min_free_memory` is a number of MiB, or text with a unit: MB, MiB, GB or GiB.",
                f"min_free_memory={amount!r}",
                'mirrored_strategy("auto", min_free_memory="2GB")',
            )
        )
    return -int(-float(found[1]) * _UNITS[found[2] or ""] // 2**20)


def with_free_memory(gpus: Sequence[Gpu], candidates: Sequence[int], needed: int, held: Collection[int]) -> list[int]:
    """Keeps the GPUs that have enough free memory, or of which nobody knows.

    Args:
        gpus: What `visible_gpus` returns.
        candidates: Places in it.
        needed: MiB.
        held: Places of GPUs that this process has chosen before: what is taken there may be its own.

    Returns:
        Those of `candidates`, in their order.
    """
    return [i for i in candidates if i in held or (free := gpus[i].free) is None or free >= needed]


def select(
    devices: int | str | Sequence[int | str] | None,
    gpus: Sequence[Gpu],
    candidates: Sequence[int],
    *,
    needed: int = 0,
    held: Collection[int] = (),
) -> list[int]:
    """Chooses GPUs.

    Args:
        devices: `None`: all candidates. "auto": those with enough free memory. A number: the first so many of them.
            A list of physical ids and UUIDs: these, be they candidates or not.
        gpus: What `visible_gpus` returns.
        candidates: Places in it.
        needed: MiB that each must have free.
        held: Places of GPUs that this process has chosen before.

    Returns:
        Places in `gpus`, in the order of `devices`.

    Raises:
        SetupError: There are not as many, or not with as much memory.
    """
    if isinstance(devices, (list, tuple)):
        candidates = positions_of(devices, gpus)
    described = ", ".join(str(gpus[i]) for i in candidates)
    least = devices if isinstance(devices, int) else 1 if devices == "auto" else len(candidates)
    if least > len(candidates):
        raise SetupError(
            message(
                f"There are only {len(candidates)} GPUs; every replica needs one of its own.",
                f"devices={devices!r}, GPUs: {described}",
                f"mirrored_strategy({len(candidates)}), or CUDA_VISIBLE_DEVICES=-1 for CPU replicas",
            )
        )
    enough = with_free_memory(gpus, candidates, needed, held)
    if len(enough) < least:
        raise SetupError(
            message(
                f"Every replica needs a GPU with {needed} MiB of free memory; there are: {described}.",
                f"devices={devices!r}",
                "nvidia-smi   # shows who uses them; or a smaller min_free_memory",
            )
        )
    return enough[:devices] if isinstance(devices, int) else enough
