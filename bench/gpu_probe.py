"""A computation on a graphics processor: prints its name and the speed of a matrix product, as JSON.

With PyTorch it multiplies in bf16; without, a kernel of its own goes through the driver's interface alone.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import struct
import subprocess
import sys
import time

SIZE = 8192
SMALL = 2048
# One thread per element of the result; slow, but nothing besides the driver is needed.
KERNEL = rb"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry multiply(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 pn)
{
  .reg .pred %p; .reg .f32 %f<4>; .reg .b32 %r<8>; .reg .b64 %d<12>;
  ld.param.u64 %d1, [pa]; ld.param.u64 %d2, [pb]; ld.param.u64 %d3, [pc]; ld.param.u32 %r1, [pn];
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %tid.x; mad.lo.u32 %r4, %r2, 256, %r3;
  rem.u32 %r5, %r4, %r1; div.u32 %r6, %r4, %r1;
  mul.lo.u32 %r7, %r6, %r1; mul.wide.u32 %d4, %r7, 4; add.u64 %d5, %d1, %d4;
  mul.wide.u32 %d6, %r5, 4; add.u64 %d7, %d2, %d6; mul.wide.u32 %d8, %r1, 4;
  mov.f32 %f1, 0f00000000; mov.u32 %r3, 0;
again:
  ld.global.f32 %f2, [%d5]; ld.global.f32 %f3, [%d7]; fma.rn.f32 %f1, %f2, %f3, %f1;
  add.u64 %d5, %d5, 4; add.u64 %d7, %d7, %d8; add.u32 %r3, %r3, 1;
  setp.lt.u32 %p, %r3, %r1; @%p bra again;
  mul.wide.u32 %d9, %r4, 4; add.u64 %d10, %d3, %d9; st.global.f32 [%d10], %f1;
  ret;
}
"""


def by_driver() -> dict[str, object]:
    """Multiply by a kernel of our own."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        status = getattr(cuda, name)(*arguments)
        if status:
            sys.exit(f"{name}: {status}")

    call("cuInit", 0)
    name = ctypes.create_string_buffer(100)
    call("cuDeviceGetName", name, 100, 0)
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), KERNEL + b"\0")
    call("cuModuleGetFunction", ctypes.byref(function), module, b"multiply")
    parts = [ctypes.c_uint64() for _ in range(3)]
    for part, value in zip(parts, (2.0, 3.0, 0.0), strict=True):
        call("cuMemAlloc_v2", ctypes.byref(part), ctypes.c_size_t(4 * SMALL * SMALL))
        (word,) = struct.unpack("I", struct.pack("f", value))
        call("cuMemsetD32_v2", part, ctypes.c_uint(word), ctypes.c_size_t(SMALL * SMALL))
    arguments = (*parts, ctypes.c_uint32(SMALL))
    pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(argument) for argument in arguments))
    spent = 0.0
    for round_number in range(11):  # the first warms up
        started = time.perf_counter()
        call("cuLaunchKernel", function, SMALL * SMALL // 256, 1, 1, 256, 1, 1, 0, None, pointers, None)
        call("cuCtxSynchronize")
        spent += time.perf_counter() - started if round_number else 0.0
    result = (ctypes.c_float * 4)()
    call("cuMemcpyDtoH_v2", result, parts[2], ctypes.c_size_t(16))
    if list(result) != [6.0 * SMALL] * 4:
        sys.exit(f"the product is wrong: {list(result)}")
    return {"by": "driver", "name": name.value.decode(), "tflops": 10 * 2 * SMALL**3 / spent / 1e12}


def by_torch() -> dict[str, object] | None:
    """Multiply with PyTorch, where there is one."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    left, right = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    pinned = torch.ones(1024, pin_memory=True).to("cuda").sum().item()
    for _ in range(3):
        left @ right
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(50):
        left @ right
    torch.cuda.synchronize()
    spent = time.perf_counter() - started
    name = torch.cuda.get_device_name()
    return {"by": f"PyTorch {torch.__version__}", "name": name, "tflops": 50 * 2 * SIZE**3 / spent / 1e12,
            "pinned": pinned}  # fmt: skip


if __name__ == "__main__":
    smi = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    found = {"nvidia-smi": (smi.returncode, smi.stdout.strip()), "driver": by_driver(), "torch": by_torch()}
    sys.stdout.write(json.dumps(found) + "\n")
