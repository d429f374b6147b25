import ctypes
import os
import subprocess

getenv = ctypes.CDLL(None).getenv
getenv.restype = ctypes.c_char_p
print(getenv(b"RANK"), getenv(b"HOME"), getenv(b"LANG"), getenv(b"NOT_SET"), os.environ["RANK"])
os.environ["ADDED"] = "gr\u00fc\u00dfe"
del os.environ["MASTER_ADDR"]
os.putenv("PUT", "1")
print(getenv(b"ADDED"), getenv(b"MASTER_ADDR"), getenv(b"PUT"), "PUT" in os.environ)
subprocess.run("echo $ADDED $MASTER_ADDR $PUT $RANK", shell=True)
os.environ.clear()
print(getenv(b"RANK"), os.environ)
subprocess.run(["/bin/sh", "-c", "echo $RANK; tr '\\0' ' ' </proc/$PPID/environ | wc -w"])
