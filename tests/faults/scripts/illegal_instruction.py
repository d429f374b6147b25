import ctypes
import mmap

from common import RANK, wait

if RANK == 2:
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\x0f\x0b" if __import__("platform").machine() == "x86_64" else bytes(4))
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
wait()
