"""Which GPUs this rank sees, as UUIDs: "GPU 0" on four ranks of a node can be four GPUs.

NVML is asked in a child process, so that a driver that hangs or crashes costs the answer and
nothing else. As that program (``python -I -S gpus.py STATE``) it imports nothing of hpcprof.
Makes no CUDA context.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

if TYPE_CHECKING:
    from hpcprof.launch.signals import SignalInbox

ANSWER = "gpus.json"  # in the state folder of the rank

_LIBRARY = "libnvidia-ml.so.1"
_DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvidia0")
# where the loader finds the library without being told; the last two in WSL and Apptainer
_LIBRARY_FOLDERS = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/wsl/lib",
    "/.singularity.d/libs",
)
# without its persistence daemon the driver starts each GPU first, a few seconds each
_CHILD_SECONDS = 60
_NVML_NO_PERMISSION = 4
_TEXT_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE, NVML_DEVICE_NAME_V2_BUFFER_SIZE


class Gpu(NamedTuple):
    """One GPU of the node that we may use. ``pci_bus`` as NVML writes it: 00000000:18:00.0."""

    uuid: str
    name: str
    pci_bus: str
    is_split: bool  # into MIG instances, which CUDA counts instead of the GPU


def start(state: Path, environ: Mapping[str, str], inbox: SignalInbox) -> int | None:
    """Begin to ask; ``environ`` is the application's. Raises nothing.

    Returns the process id of the child, which the caller reaps, or None when there is nothing to
    ask: no device file of NVIDIA and no NVML. The child ends itself after a minute.
    """
    from hpcprof.launch import processes

    if not _may_have_gpus(environ):
        return None
    argv = [sys.executable, "-I", "-S", os.path.abspath(__file__), str(state)]
    try:
        output = os.open(os.devnull, os.O_WRONLY)
        try:
            program = processes.Program(argv, environ, 0o077, own_group=True, output=output)
            return processes.spawn(program, inbox)
        finally:
            os.close(output)
    except OSError:
        return None


def result(state: Path) -> list[dict[str, Any]] | None:
    """What the child found: ``[{"visible": 0, "uuid": "GPU-…", "name": …, "pci_bus": …}, …]``.

    ``visible`` is CUDA's number of the GPU in this process. ``uuid``, ``name`` and ``pci_bus`` are
    None where it is not certain which GPU that is. [] means that the rank sees no GPU; None that
    NVML could not be read, or not yet.
    """
    try:
        answer = json.loads((state / ANSWER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return answer if isinstance(answer, list) else None


def _may_have_gpus(environ: Mapping[str, str]) -> bool:
    """A cheap look, so that nodes without GPUs start no child."""
    if any(os.path.exists(path) for path in _DEVICE_FILES):
        return True
    folders = [*environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), *_LIBRARY_FOLDERS]
    return any(os.path.exists(os.path.join(folder, _LIBRARY)) for folder in folders if folder)


def seen(environ: Mapping[str, str], gpus: Sequence[Gpu]) -> list[dict[str, Any]] | None:
    """The GPUs that CUDA shows to a process with this environment, in CUDA's order.

    ``gpus`` are those of the node that the process may use. None when it cannot be told how many
    CUDA shows. See "CUDA Environment Variables" in NVIDIA's CUDA programming guide.
    """
    ordered = sorted(gpus, key=lambda gpu: gpu.pci_bus)
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        if any(gpu.is_split for gpu in gpus):
            return None  # CUDA shows one MIG instance, and which is its choice
        wanted = ",".join(str(number) for number in range(len(ordered)))
    certain = _numbers_are_certain(environ, gpus)
    shown: list[dict[str, Any]] = []
    for text in wanted.split(","):
        found = _entry(text.strip(), ordered, certain=certain)
        if found is None:
            break  # CUDA ignores what comes after an entry that it cannot use
        shown.append({"visible": len(shown), **found})
    named = [one["uuid"] for one in shown if one["uuid"]]
    return shown if len(named) == len(set(named)) else None  # CUDA refuses an entry given twice


def _numbers_are_certain(environ: Mapping[str, str], gpus: Sequence[Gpu]) -> bool:
    """Whether number N of CUDA is the Nth by PCI bus.

    CUDA's default order, FASTEST_FIRST, is the order of the bus only where no GPU is faster than
    another: on nodes with equal GPUs. Numbers of a node with MIG count instances.
    """
    equal = len({gpu.name for gpu in gpus}) <= 1
    by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return (equal or by_bus) and not any(gpu.is_split for gpu in gpus)


def _entry(text: str, ordered: Sequence[Gpu], *, certain: bool) -> dict[str, Any] | None:
    """What one entry of CUDA_VISIBLE_DEVICES stands for, None when CUDA cannot use it."""
    unknown = {"uuid": None, "name": None, "pci_bus": None}
    if text.startswith("MIG-"):
        return {**unknown, "uuid": text}
    if text.isdigit():
        number = int(text)
        if not certain:
            can_exist = number < len(ordered) or any(gpu.is_split for gpu in ordered)
            return unknown if can_exist else None
        matching = ordered[number : number + 1]
    else:
        # the beginning of a UUID is enough, if no other begins so; "NoDevFiles", which Slurm sets
        # for a task without GPUs, begins none
        matching = [gpu for gpu in ordered if text and gpu.uuid.startswith(text)]
    if len(matching) != 1:
        return None
    return {"uuid": matching[0].uuid, "name": matching[0].name, "pci_bus": matching[0].pci_bus}


def read_gpus() -> list[Gpu]:
    """The GPUs of this node that we may use, as NVML lists them. May hang with the driver.

    Raises OSError when there is no NVML or it answers with an error, AttributeError when it is
    one from before 2013.
    """
    import ctypes

    library = ctypes.CDLL(_LIBRARY)
    _check(library.nvmlInit_v2())
    try:
        count = ctypes.c_uint()
        _check(library.nvmlDeviceGetCount_v2(ctypes.byref(count)))
        return [gpu for index in range(count.value) for gpu in _read_gpu(library, index)]
    finally:
        library.nvmlShutdown()


def _read_gpu(library: Any, index: int) -> list[Gpu]:
    """The GPU with this index of NVML; [] when a cgroup keeps it from us, and from CUDA too."""
    import ctypes

    handle = ctypes.c_void_p()
    code = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
    if code == _NVML_NO_PERMISSION:
        return []
    _check(code)
    uuid = ctypes.create_string_buffer(_TEXT_BYTES)
    name = ctypes.create_string_buffer(_TEXT_BYTES)
    _check(library.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(_TEXT_BYTES)))
    _check(library.nvmlDeviceGetName(handle, name, ctypes.c_uint(_TEXT_BYTES)))
    # nvmlPciInfo_t of nvml.h: busIdLegacy[16], five unsigned int, busId[32]
    place = ctypes.create_string_buffer(16 + 5 * ctypes.sizeof(ctypes.c_uint) + 32)
    _check(library.nvmlDeviceGetPciInfo_v3(handle, place))
    bus = place.raw[-32:].split(b"\0")[0]
    return [Gpu(uuid.value.decode(), name.value.decode(), bus.decode(), _is_split(library, handle))]


def _is_split(library: Any, handle: Any) -> bool:
    """Whether the GPU is in MIG mode; False where the driver or the GPU knows nothing of it."""
    import ctypes

    current, pending = ctypes.c_uint(), ctypes.c_uint()
    try:
        ask = library.nvmlDeviceGetMigMode
    except AttributeError:
        return False
    code = ask(handle, ctypes.byref(current), ctypes.byref(pending))
    return code == 0 and current.value == 1


def _check(code: int) -> None:
    if code:
        raise OSError(f"NVML returned {code}")


def main(argv: Sequence[str]) -> int:
    """The child: write the answer into the state folder; returns 1 when there is none."""
    # a driver that hangs shall not hold this process, nor it the descriptors of srun's PMI
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.alarm(_CHILD_SECONDS)
    os.closerange(3, 256)
    try:
        answer = seen(os.environ, read_gpus())
    except (OSError, AttributeError, UnicodeDecodeError):
        return 1
    path = os.path.join(argv[0], ANSWER)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as stream:
            json.dump(answer, stream)
        os.replace(temporary, path)
    except OSError:
        return 1  # the rank has ended, and its folder is gone
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
