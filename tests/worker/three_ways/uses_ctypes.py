import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
print(libc.getpid() == os.getpid(), libc.getppid() == os.getppid(), libc.gettid() == os.getpid())
print(libc.open(b"/nowhere", 0), os.strerror(ctypes.get_errno()))
libc.printf(b"from C, %d\n", 5)
print("from Python", flush=True)
callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda number: number + 1)
print(callback(4))
libc.printf(b"from C at the end\n")
