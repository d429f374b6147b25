"""Makes workers fail for real, and records what they leave: exit status, error file and the end of standard error.

    python -m tests.captured.record_failures [NAME]...

Each case is a script that each of its ranks runs under this package's bootstrap, as agents start it, with gloo on this
machine. What is recorded is one file for each case in `tests/captured/failures`; paths of this machine are replaced.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2] / "hpc_elastic"
FOLDER = Path(__file__).parent / "failures"
START = """
import datetime, os, signal, sys, time
import torch, torch.distributed as dist
rank = int(os.environ["RANK"])
def start(timeout=5):
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout))
    return torch.ones(1000)
def step(tensor):
    dist.all_reduce(tensor)
def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""
# Name: number of ranks, and the script. One rank needs no torch.
CASES: dict[str, tuple[int, str]] = {
    "peer-killed-in-all-reduce": (
        3,
        START
        + """\
t = start()
step(t)
if rank == 1: die()
while True: step(t)
""",
    ),
    "peer-killed-in-backward": (
        3,
        START
        + """\
start()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
for i in range(200):
    if rank == 1 and i == 3: die()
    model(torch.randn(4, 10)).sum().backward()
""",
    ),
    "peer-killed-asynchronous-work": (
        3,
        START
        + """\
t = start()
step(t)
if rank == 1: die()
for _ in range(99): dist.all_reduce(t, async_op=True).wait()
""",
    ),
    "peer-exits": (
        3,
        START
        + """\
t = start()
step(t)
if rank == 1: sys.exit(3)
while True: step(t)
""",
    ),
    "collective-skipped": (
        3,
        START
        + """\
t = start()
if rank == 1: time.sleep(12); sys.exit(0)
step(t)
""",
    ),
    "monitored-barrier": (
        3,
        START
        + """\
start()
if rank == 1: time.sleep(12); sys.exit(0)
dist.monitored_barrier()
""",
    ),
    "raises-and-barrier-in-finally": (
        3,
        START
        + """\
t = start()
try:
    if rank == 1: raise ValueError('bad batch')
    while True: step(t)
finally:
    dist.barrier()
    dist.destroy_process_group()
""",
    ),
    "raises-after-loss-of-peer": (
        3,
        START
        + """\
t = start()
step(t)
if rank == 1: die()
try:
    while True: step(t)
except RuntimeError as error:
    raise SystemError('training failed') from error
""",
    ),
    "store-gone": (
        3,
        START
        + """\
start()
store = dist.distributed_c10d._get_default_store()
if rank == 0: time.sleep(1); die()
time.sleep(2)
store.get('nothing')
""",
    ),
    "group-after-store-gone": (
        3,
        START
        + """\
start()
if rank == 0: time.sleep(1); die()
time.sleep(2)
dist.new_group([1, 2])
""",
    ),
    "store-key-missing": (
        2,
        START
        + """\
start()
dist.distributed_c10d._get_default_store().wait(['nothing'])
""",
    ),
    "mismatched-shapes": (
        3,
        START
        + """\
start()
step(torch.ones(1000 if rank else 500))
time.sleep(3)
""",
    ),
    "rank-missing-at-rendezvous": (
        3,
        START
        + """\
if rank == 2: sys.exit(0)
start(4)
""",
    ),
    "master-not-there": (
        2,
        START
        + """\
os.environ['MASTER_ADDR'] = '127.0.0.9'
if rank == 0: sys.exit(0)
start(4)
""",
    ),
    "master-unknown": (
        2,
        START
        + """\
os.environ['MASTER_ADDR'] = 'nowhere.invalid'
start(4)
""",
    ),
    "wrong-interface": (
        2,
        START
        + """\
os.environ['GLOO_SOCKET_IFNAME'] = 'eth77'
start(4)
""",
    ),
    "port-of-store-in-use": (
        1,
        START
        + """\
first = dist.TCPStore('127.0.0.1', 0, is_master=True)
dist.TCPStore('127.0.0.1', first.port, 1, True)
""",
    ),
    "port-in-use": (
        1,
        """\
import socket
a = socket.socket(); a.bind(('127.0.0.1', 0)); a.listen()
socket.socket().bind(a.getsockname())
""",
    ),
    "no-gpu": (
        1,
        START
        + """\
torch.ones(1, device='cuda')
""",
    ),
    "no-gpu-for-checkpoint": (
        1,
        START
        + """\
torch.serialization._validate_device('cuda', 'cuda')
""",
    ),
    "module-not-found": (
        1,
        """\
def build():
    import flash_attention
build()
""",
    ),
    "name-not-found": (
        1,
        """\
from json import missing
""",
    ),
    "library-not-found": (
        1,
        """\
import ctypes
ctypes.CDLL('libmissing.so.12')
""",
    ),
    "import-falls-back": (
        1,
        """\
def main():
    raise ValueError('bad batch')
try:
    import flash_attention
except ImportError:
    main()
""",
    ),
    "import-explained": (
        1,
        """\
try:
    import flash_attention
except ImportError:
    raise RuntimeError('install flash_attention first')
""",
    ),
    "value-error": (
        1,
        """\
def step(batch):
    return batch / 0
step(1)
""",
    ),
    "lookup-then-value-error": (
        1,
        """\
def find(name):
    try:
        return {}[name]
    except KeyError:
        raise ValueError('no model ' + name)
find('x')
""",
    ),
    "syntax-error": (
        1,
        """\
def broken(:
    pass
""",
    ),
    "exception-group": (
        1,
        """\
raise ExceptionGroup('two', [ValueError('a'), TypeError('b')])
""",
    ),
    "users-connection-error": (
        1,
        """\
raise ConnectionResetError(104, 'Connection reset by peer')
""",
    ),
    "users-lie": (
        1,
        """\
raise ValueError('Connection closed by peer')
""",
    ),
    "users-runtime-error": (
        1,
        """\
def get():
    raise RuntimeError('timed out waiting 100ms: Connection reset by peer')
get()
""",
    ),
    "broken-pipe": (
        1,
        """\
import os
r, w = os.pipe()
os.close(r)
os.write(w, b'x')
""",
    ),
    "json": (
        1,
        """\
import json
json.loads('{')
""",
    ),
    "memory-error": (
        1,
        """\
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
x = bytearray(1 << 31)
""",
    ),
    "tensor-too-large": (
        1,
        START
        + """\
import resource
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
x = torch.ones(1 << 32)
""",
    ),
    "disk-full": (
        1,
        """\
import os
open(os.environ['SMALL'] + '/checkpoint', 'wb').write(b'x' * (4 << 20))
""",
    ),
    "disk-full-at-torch-save": (
        1,
        START
        + """\
torch.save(torch.ones(4 << 20), os.environ['SMALL'] + '/checkpoint.pt')
""",
    ),
    "read-only": (
        1,
        """\
import os, subprocess
subprocess.run(['mount', '-o', 'remount,ro', os.environ['SMALL']], check=True)
open(os.environ['SMALL'] + '/x', 'w')
""",
    ),
    "missing-file": (
        1,
        """\
open('data/missing.bin')
""",
    ),
    "data-loader-raises": (
        1,
        START
        + """\
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        raise ValueError(f'bad image {i}')
list(torch.utils.data.DataLoader(Data(), num_workers=1))
""",
    ),
    "data-loader-killed": (
        1,
        START
        + """\
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        die()
list(torch.utils.data.DataLoader(Data(), num_workers=1))
""",
    ),
    "data-loader-segfault": (
        1,
        START
        + """\
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        os.kill(os.getpid(), signal.SIGSEGV)
list(torch.utils.data.DataLoader(Data(), num_workers=1))
""",
    ),
    "data-loader-bus-error": (
        1,
        START
        + """\
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        os.kill(os.getpid(), signal.SIGBUS)
list(torch.utils.data.DataLoader(Data(), num_workers=1))
""",
    ),
    "pool-raises": (
        1,
        """\
import concurrent.futures
def work(x):
    raise ValueError('bad shard')
concurrent.futures.ProcessPoolExecutor(1).submit(work, 1).result()
""",
    ),
    "pool-killed": (
        1,
        """\
import concurrent.futures, os, signal
def work(x):
    os.kill(os.getpid(), signal.SIGKILL)
concurrent.futures.ProcessPoolExecutor(1).submit(work, 1).result()
""",
    ),
    "segfault": (
        1,
        """\
import ctypes, faulthandler
faulthandler.enable()
def kernel():
    ctypes.string_at(0)
kernel()
""",
    ),
    "abort": (
        1,
        """\
import faulthandler, os
faulthandler.enable()
def check():
    os.abort()
check()
""",
    ),
    "double-free": (
        1,
        """\
import ctypes
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
p = ctypes.c_void_p(c.malloc(2000))
q = c.malloc(16)
c.free(p)
c.free(p)
""",
    ),
    "bus-error": (
        1,
        """\
import mmap, os
f = open(os.environ['SMALL'] + '/map', 'w+b')
f.truncate(8192)
m = mmap.mmap(f.fileno(), 8192)
f.truncate(0)
m[5000]
""",
    ),
    "killed": (
        1,
        """\
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
""",
    ),
    "exits": (
        1,
        """\
import sys
sys.exit(7)
""",
    ),
    "exits-with-text": (
        1,
        """\
import sys
sys.exit('no configuration found')
""",
    ),
    "exits-at-once": (
        1,
        """\
import os
os._exit(9)
""",
    ),
}


def record(name: str) -> dict[str, Any]:
    """Run a case in a folder of its own, and return what each rank left."""
    ranks, script = CASES[name]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as small:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", small], check=True
        )  # in our own mount namespace
        Path(folder, "train.py").write_text(script)
        started = [_start(rank, ranks, port, folder, small) for rank in range(ranks)]
        codes = [process.wait(60) for process in started]
        found = [_left(folder, rank, code) for rank, code in enumerate(codes)]
        subprocess.run(["umount", small], check=True)
    text = json.dumps({"script": script, "ranks": found}, indent=1)
    for path, word in (
        (folder, "/home/user/project"),
        (small, "/small"),
        (sys.prefix, "/opt/python"),
        (sys.base_prefix, "/usr"),
    ):
        text = text.replace(path, word)
    return dict(json.loads(text))


def _start(rank: int, ranks: int, port: int, folder: str, small: str) -> subprocess.Popen[bytes]:
    environment = {
        "PATH": os.environ["PATH"],
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "SMALL": small,
        "TORCHELASTIC_ERROR_FILE": f"{folder}/error-{rank}.json",
    }
    words = [sys.executable, str(PACKAGE / "launch.py"), "hpc_elastic.worker.bootstrap", "--parent", str(os.getpid())]
    with open(f"{folder}/stderr-{rank}.log", "wb") as stderr:
        return subprocess.Popen(
            [*words, "--script", "train.py"], cwd=folder, env=environment, stderr=stderr, stdout=subprocess.DEVNULL
        )


def _left(folder: str, rank: int, code: int) -> dict[str, Any]:
    error = Path(folder, f"error-{rank}.json")
    return {
        "exit_code": code if code >= 0 else None,
        "signal": signal.Signals(-code).name if code < 0 else None,
        "error": json.loads(error.read_text()) if error.exists() else None,
        "stderr_tail": Path(folder, f"stderr-{rank}.log").read_bytes()[-6000:].decode("utf-8", "replace"),
    }


def main() -> None:
    """Record the named cases, or all, in a mount namespace of their own."""
    if os.environ.get("IN_NAMESPACE") != "1":
        environment = {**os.environ, "IN_NAMESPACE": "1"}
        words = ["unshare", "-m", sys.executable, "-m", "tests.captured.record_failures", *sys.argv[1:]]
        sys.exit(subprocess.run(words, env=environment, check=False).returncode)
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or CASES:
        (FOLDER / f"{name}.json").write_text(json.dumps(record(name), indent=1) + "\n")
        print(name, flush=True)


if __name__ == "__main__":
    main()
