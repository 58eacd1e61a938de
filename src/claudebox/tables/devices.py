"""Device nodes: those of graphics processors, those that a user may ask for, and what the others would give away."""

from __future__ import annotations

# Of NVIDIA: the cards, what controls them, and unified memory; capabilities are for MIG and profilers. Of AMD: compute.
# Of Windows' subsystem: all of it. Cards of Mesa are shown by their nodes for rendering, never by those for displays.
GPU_NAMES: tuple[str, ...] = (
    "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "kfd", "dxg",
)  # fmt: skip
GPU_NUMBERED = "nvidia"  # and a number
GPU_DIRECTORIES: tuple[tuple[str, str], ...] = (("/dev/nvidia-caps", "nvidia-cap"), ("/dev/dri", "renderD"))
# Variables that choose among cards.
GPU_VARIABLES: tuple[str, ...] = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "ZE_AFFINITY_MASK",
)  # fmt: skip
# Libraries of drivers, by the beginning of their names, and programs that come with them.
GPU_LIBRARIES: tuple[str, ...] = ("libcuda.so", "libnvidia-ml.so", "libamdhip64.so", "libze_loader.so")
GPU_PROGRAMS: tuple[str, ...] = ("nvidia-smi", "rocm-smi", "rocminfo", "xpu-smi")
# What libraries read of /sys besides the cards themselves: how many processors there are, and how near.
GPU_SYSTEM: tuple[str, ...] = ("/sys/devices/system/cpu", "/sys/devices/system/node")

# Subsystems of the kernel whose nodes a user may name; every other is refused unless they insist.
PERMITTED: frozenset[str] = frozenset((
    "accel", "dma_heap", "habanalabs", "infiniband_verbs", "kfd", "media", "neuron_device", "sound", "video4linux",
))  # fmt: skip
PERMITTED_NUMBERS: frozenset[tuple[int, int]] = frozenset(((10, 183), (10, 200), (10, 229)))  # hwrng, tun, fuse
# Why others are refused, by number where a minor number of -1 stands for all, for the message.
REFUSED: dict[tuple[int, int], str] = {
    (1, -1): "memory of this machine",
    (4, -1): "a terminal of the host",
    (5, -1): "a terminal of the host",
    (7, -1): "a screen of the host",
    (10, 232): "virtual machines, which no sandbox confines",
    (13, -1): "what is typed and clicked on this machine",
    (188, -1): "a terminal of the host",
}
REFUSED_SUBSYSTEMS: dict[str, str] = {
    "drm": "a display",
    "hidraw": "what is typed and clicked on this machine",
    "input": "what is typed and clicked on this machine",
    "mem": "memory of this machine",
    "tty": "a terminal of the host",
    "usb": "any device at this bus",
    "vc": "a screen of the host",
}
