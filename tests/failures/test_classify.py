"""A failure gets its class by what real programs leave, and a lie in a message does not change it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_elastic.failures import classify as module
from hpc_elastic.failures import exception_rules
from hpc_elastic.failures.classes import MEANINGS, Blame, FailureClass
from hpc_elastic.failures.classify import Classified, classify
from hpc_elastic.failures.describe import telling_line
from hpc_elastic.failures.ends import RULES_FOR_ENDS
from hpc_elastic.failures.evidence import FailureEvidence, FreeSpace, MemoryUse
from hpc_elastic.failures.exception_rules import RULES_FOR_EXCEPTIONS
from hpc_elastic.failures.traceback_text import innermost_of_user, parse_traceback

CAPTURED = Path(__file__).parents[1] / "captured" / "failures"
GIB = 1 << 30
# As torchrun of torch 2.13 prints it, shortened.
STOPPED_LAUNCHER = """W1123 19:35:51.000 30311 torch/distributed/elastic/agent/server/api.py:739] Received 15
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/env/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/api.py", line 88, in handler
    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
torch.distributed.elastic.multiprocessing.api.SignalException: Process 30311 got signal: 15
"""
FULL = FreeSpace(place="the run directory", free=0, total=1 << 20)


def captured(name: str, rank: int = 0, **changes: Any) -> FailureEvidence:
    """What a rank of a real program left, as `tests/captured/record_failures.py` recorded it."""
    left = json.loads((CAPTURED / f"{name}.json").read_text())["ranks"][rank]
    error = left["error"] or {}
    text = error.get("message", {})
    evidence = FailureEvidence(
        exit_code=left["exit_code"],
        signal_name=left["signal"],
        written_by="bootstrap" if error else "",
        failure_class=error.get("class", ""),
        message=text.get("message", ""),
        traceback=text.get("extraInfo", {}).get("py_callstack", ""),
        stderr_tail=left["stderr_tail"],
        directory="/home/user/project",
    )
    return replace(evidence, **changes)


def without_error_file(evidence: FailureEvidence) -> FailureEvidence:
    """The same of a program that has no bootstrap: only its output is known."""
    return replace(evidence, written_by="", failure_class="", message="", traceback="")


def raised(
    type_name: str, text: str, *, file: str = "/home/user/project/train.py", source: str = "step()"
) -> Classified:
    """Classify an exception with one frame below the user's."""
    traceback = (
        'Traceback (most recent call last):\n  File "/home/user/project/train.py", line 4, in <module>\n    main()\n'
        f'  File "{file}", line 7, in step\n    {source}\n{type_name}: {text}\n'
    )
    message = f"{type_name.rpartition('.')[2]}: {text}"
    return classify(FailureEvidence(exit_code=1, written_by="bootstrap", message=message, traceback=traceback))


REAL = [
    ("peer-killed-in-all-reduce", 0, "peer_lost", "train.py:9 in step"),
    ("peer-killed-in-all-reduce", 1, "signal", ""),
    ("peer-killed-in-all-reduce", 2, "peer_lost", "train.py:9 in step"),
    ("peer-killed-in-backward", 0, "peer_lost", "train.py:16"),
    ("peer-killed-asynchronous-work", 0, "peer_lost", "train.py:15"),
    ("peer-exits", 0, "peer_lost", "train.py:9 in step"),
    ("peer-exits", 1, "exit_code", ""),
    ("collective-skipped", 0, "collective_timeout", "train.py:9 in step"),
    ("collective-skipped", 2, "collective_timeout", "train.py:9 in step"),
    ("monitored-barrier", 0, "collective_timeout", "train.py:14"),
    ("monitored-barrier", 2, "collective_timeout", "train.py:14"),
    ("raises-and-barrier-in-finally", 1, "exception", "train.py:14"),
    ("raises-after-loss-of-peer", 0, "peer_lost", "train.py:9 in step"),
    ("store-gone", 1, "peer_lost", "train.py:16"),
    ("group-after-store-gone", 1, "rendezvous", "train.py:15"),
    ("store-key-missing", 0, "collective_timeout", "train.py:13"),
    ("mismatched-shapes", 0, "aborted", ""),
    ("mismatched-shapes", 1, "peer_lost", "train.py:9 in step"),
    ("rank-missing-at-rendezvous", 0, "rendezvous", "train.py:6 in start"),
    ("master-not-there", 1, "rendezvous", "train.py:6 in start"),
    ("master-unknown", 1, "rendezvous", "train.py:6 in start"),
    ("port-of-store-in-use", 0, "port_in_use", "train.py:13"),
    ("port-in-use", 0, "port_in_use", "train.py:3"),
    ("no-gpu", 0, "cuda_no_device", "train.py:12"),
    ("no-gpu-for-checkpoint", 0, "cuda_no_device", "train.py:12"),
    ("module-not-found", 0, "import_error", "train.py:2 in build"),
    ("name-not-found", 0, "import_error", "train.py:1"),
    ("library-not-found", 0, "import_error", "train.py:2"),
    ("import-falls-back", 0, "exception", "train.py:2 in main"),
    ("import-explained", 0, "import_error", "train.py:2"),
    ("value-error", 0, "exception", "train.py:2 in step"),
    ("lookup-then-value-error", 0, "exception", "train.py:5 in find"),
    ("syntax-error", 0, "exception", "train.py:1"),
    ("exception-group", 0, "exception", "train.py:1"),
    ("users-connection-error", 0, "exception", "train.py:1"),
    ("users-lie", 0, "exception", "train.py:1"),
    ("users-runtime-error", 0, "exception", "train.py:2 in get"),
    ("broken-pipe", 0, "exception", "train.py:4"),
    ("json", 0, "exception", "train.py:2"),
    ("memory-error", 0, "exception", "train.py:3"),
    ("tensor-too-large", 0, "exception", "train.py:14"),
    ("disk-full", 0, "disk_full", "train.py:2"),
    ("read-only", 0, "file_system", "train.py:3"),
    ("wrong-interface", 0, "exception", "train.py:6 in start"),
    ("missing-file", 0, "exception", "train.py:1"),
    ("data-loader-raises", 0, "exception", "train.py:15 in __getitem__"),
    ("data-loader-killed", 0, "signal", "train.py:16"),
    ("data-loader-segfault", 0, "segmentation_fault", "train.py:16"),
    ("data-loader-bus-error", 0, "shared_memory_full", "train.py:16"),
    ("pool-raises", 0, "exception", "train.py:3 in work"),
    ("pool-killed", 0, "exception", "train.py:4"),
    ("segfault", 0, "segmentation_fault", "train.py:4 in kernel"),
    ("abort", 0, "aborted", "train.py:4 in check"),
    ("double-free", 0, "aborted", ""),
    ("bus-error", 0, "bus_error", ""),
    ("killed", 0, "signal", ""),
    ("exits", 0, "exit_code", ""),
    ("exits-with-text", 0, "exit_code", ""),
    ("exits-at-once", 0, "exit_code", ""),
]


@pytest.mark.parametrize(("name", "rank", "word", "frame"), REAL)
def test_what_a_real_program_left_has_its_class_and_its_frame(name: str, rank: int, word: str, frame: str) -> None:
    found = classify(captured(name, rank))
    assert (found.failure_class.value, found.frame) == (word, frame), found


@pytest.mark.parametrize(("name", "rank", "word", "frame"), [case for case in REAL if case[2] != "shared_memory_full"])
def test_the_end_of_standard_error_says_the_same_as_the_error_file(name: str, rank: int, word: str, frame: str) -> None:
    evidence = captured(name, rank)
    found = classify(without_error_file(evidence))
    assert (found.failure_class.value, found.frame) == (word, frame), found


@pytest.mark.parametrize("rank", [0, 2])
def test_the_message_of_a_victim_is_without_the_native_codes_place(rank: int) -> None:
    message = classify(captured("peer-killed-in-all-reduce", rank)).message
    assert message.startswith("RuntimeError: gloo: ")
    assert "pair.cc" not in message
    assert "GLHF" not in message


def test_what_finally_raises_is_told_beside_the_failure() -> None:
    found = classify(captured("raises-and-barrier-in-finally", 1))
    assert found.message == "ValueError: bad batch"
    assert found.detail.startswith("then RuntimeError: gloo: ")


LOOKUP = (
    'Traceback (most recent call last):\n  File "/home/ada/train.py", line 4, in step\n    return {}["lr"]\n'
    "KeyError: 'lr'\n"
)
FROM = "\nThe above exception was the direct cause of the following exception:\n\n"
WHILE = "\nDuring handling of the above exception, another exception occurred:\n\n"


def crashed(link: str, *, function: str = "step", source: str = "raise Crash", text: str = "training crashed") -> str:
    """Return the message of an exception that was raised because of another one."""
    later = (
        'Traceback (most recent call last):\n  File "/home/ada/train.py", line 9, in <module>\n    main()\n'
        f'  File "/home/ada/train.py", line 6, in {function}\n    {source}\nCrash: {text}\n'
    )
    evidence = FailureEvidence(
        exit_code=1, written_by="bootstrap", message=f"Crash: {text}", traceback=LOOKUP + link + later
    )
    return classify(evidence).message


@pytest.mark.parametrize("link", [FROM, WHILE])
def test_an_exception_that_was_raised_for_another_one_names_it(link: str) -> None:
    assert crashed(link) == "Crash: training crashed (from KeyError: 'lr')"
    assert crashed(link, text="it ended\nat step 3") == "Crash: it ended (from KeyError: 'lr')\nat step 3"
    assert crashed(link, text="no such option: 'lr'") == "Crash: no such option: 'lr'"
    assert crashed(link, text="these failed:\na") == "Crash: these failed:\na"


def test_an_exception_without_a_text_is_told_with_its_place() -> None:
    stack = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 4, in step\n    assert batch\n'
    evidence = FailureEvidence(
        exit_code=1, written_by="bootstrap", message="AssertionError", traceback=f"{stack}AssertionError\n"
    )
    assert classify(evidence).message == "AssertionError (at train.py:4 in step)"
    assert classify(without_error_file(replace(evidence, stderr_tail=evidence.traceback))).message == (
        "AssertionError (at train.py:4 in step)"
    )


def test_an_exception_after_a_handled_one_does_not_name_it() -> None:
    assert crashed(WHILE, function="fall_back") == "Crash: training crashed"
    assert crashed(WHILE, source="read(file)") == "Crash: training crashed"


def test_the_message_of_a_data_loaders_worker_is_its_own_last_line() -> None:
    assert (
        classify(captured("data-loader-raises")).message == "ValueError: bad image 0 (in DataLoader worker process 0)"
    )


def test_a_connection_that_a_data_loaders_process_took_along_names_that_process() -> None:
    stack = (
        'Traceback (most recent call last):\n  File "/home/ada/job.py", line 18, in <module>\n    list(loader)\n'
        '  File "/opt/python/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 725, in __next__\n'
        '    data = self._next_data()\n  File "/opt/python/lib/python3.11/multiprocessing/connection.py", line 395, in '
        "_recv\n    chunk = read(handle, remaining)\nConnectionResetError: [Errno 104] Connection reset by peer\n"
    )
    evidence = FailureEvidence(exit_code=1, written_by="bootstrap", traceback=stack, message=stack.split("\n")[-2])
    found = classify(evidence)
    assert found.failure_class is FailureClass.EXCEPTION
    assert found.message.endswith("reset by peer (a DataLoader worker exited unexpectedly)")
    elsewhere = replace(evidence, traceback=stack.replace("torch/utils/data/dataloader", "redis/client"))
    assert classify(elsewhere).message.endswith("reset by peer")


def test_a_failed_write_of_torch_save_is_a_full_disk_only_where_one_is_full() -> None:
    evidence = captured("disk-full-at-torch-save")
    assert classify(replace(evidence, free=(FULL,))).failure_class is FailureClass.DISK_FULL


def test_a_full_disk_that_lacks_inodes_alone_says_how_many_files_it_has() -> None:
    scarce = FreeSpace(place="/scratch", free=1 << 30, total=2 << 30, files=4000)
    full = classify(replace(exited("1", DEAD_THREAD + "OSError: [Errno 28] No space left on device\n"), free=(scarce,)))
    assert (full.failure_class, full.detail) == (
        FailureClass.DISK_FULL,
        "/scratch has no inode left for more than its 4000 files",
    )
    bus_error = classify(captured("bus-error", free=(replace(scarce, place="/dev/shm"),)))
    assert bus_error.failure_class is FailureClass.BUS_ERROR


def test_a_failed_stream_of_torch_save_is_a_full_disk_only_where_one_is_full() -> None:
    stack = (
        'Traceback (most recent call last):\n  File "/opt/python/lib/python3.11/site-packages/torch/serialization.py", '
        "line 1312, in _save\n    zip_file.write_record(name, storage, num_bytes)\n"
        "RuntimeError: basic_ios::clear: iostream error\n"
    )
    evidence = FailureEvidence(exit_code=1, stderr_tail=stack)
    assert classify(evidence).failure_class is FailureClass.EXCEPTION
    assert classify(replace(evidence, free=(FULL,))).failure_class is FailureClass.DISK_FULL


# What needs a GPU was printed elsewhere: each with where it can be read.
TORCH = "/opt/python/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
NCCL_SYSTEM = (
    "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, unhandled system error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.18.6\nncclSystemError: System call (e.g. socket, malloc) or external "
    "library call failed or device error. \nLast error:\n"
)
NO_COUNT = (
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that "
    "might have already set an error? Error "
)
PRINTED = [
    # NVIDIA/nccl#2076
    (
        "torch.distributed.DistBackendError",
        (
            "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or"
            " there was a network error, NCCL version 2.21.5\n"
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
            "prematurely.\n"
            "Last error:\n"
            "socketProgressOpt: Call to recv from 172.1.1.1<33759> failed : Connection reset by peer"
        ),
        "peer_lost",
    ),
    # NVIDIA/nccl#1514: the same, seen as an internal error
    (
        "torch.distributed.DistBackendError",
        (
            "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, internal error, NCCL "
            "version 2.14.3\n"
            "ncclInternalError: Internal check failed.\n"
            "Last error:\n"
            "Net : Connection closed by remote peer user<50260>"
        ),
        "peer_lost",
    ),
    # It could not connect to another rank: hkproj/pytorch-transformer-distributed#1, awslabs/awsome-distributed-ai#192
    (
        "torch.distributed.DistBackendError",
        f"{NCCL_SYSTEM}socketStartConnect: Connect to 192.168.19.14<52822> failed : No route to host",
        "rendezvous",
    ),
    (
        "torch.distributed.DistBackendError",
        f"{NCCL_SYSTEM}socketPollConnect: Connect to 10.1.1.1<45069> returned 111(Connection refused) errno 115",
        "rendezvous",
    ),
    ("torch.distributed.DistBackendError", f"{NCCL_SYSTEM}Bootstrap : no socket interface found", "rendezvous"),
    # Its shared memory: pytorch/ci-infra#490, NVIDIA/nccl-tests#166
    (
        "torch.distributed.DistBackendError",
        (
            f"{NCCL_SYSTEM}Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888), error: "
            "No space left on device (28)"
        ),
        "shared_memory_full",
    ),
    (
        "torch.distributed.DistBackendError",
        f"{NCCL_SYSTEM}Error: failed to extend /dev/shm/nccl-fjwOOB to 5967876 bytes",
        "shared_memory_full",
    ),
    # NVIDIA/nccl#1518: room is not what it lacks
    (
        "torch.distributed.DistBackendError",
        f"{NCCL_SYSTEM}Error while creating shared memory segment /dev/shm/nccl-NzwJ7O (size 9637888)",
        "exception",
    ),
    # torch/csrc/distributed/c10d/NCCLUtils.cpp
    ("torch.distributed.DistBackendError", "NCCL communicator was aborted on rank 3. ", "peer_lost"),
    # hiyouga/LlamaFactory#7396, as TORCH_NCCL_BLOCKING_WAIT raises it
    (
        "torch.distributed.DistBackendError",
        (
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, "
            "NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600004 milliseconds before "
            "timing out."
        ),
        "collective_timeout",
    ),
    (
        "RuntimeError",
        ("CUDA error: uncorrectable ECC error encountered\nCompile with `TORCH_USE_CUDA_DSA`"),
        "cuda_hardware",
    ),
    ("torch.AcceleratorError", "CUDA error: an illegal memory access was encountered", "cuda_illegal_access"),
    ("torch.AcceleratorError", "CUDA error: device-side assert triggered", "cuda_illegal_access"),
    ("torch.AcceleratorError", "CUDA error: unspecified launch failure", "cuda_illegal_access"),
    ("torch.AcceleratorError", "CUDA error: out of memory", "cuda_out_of_memory"),
    ("torch.AcceleratorError", "CUDA error: invalid device ordinal", "cuda_no_device"),
    ("torch.AcceleratorError", "CUDA error: CUDA-capable device(s) is/are busy or unavailable", "cuda_no_device"),
    # c10/cuda/CUDAFunctions.cpp
    ("RuntimeError", f"{NO_COUNT}802: system not yet initialized", "cuda_no_device"),
    ("RuntimeError", f"{NO_COUNT}804: forward compatibility was attempted on non supported HW", "cuda_no_device"),
    ("RuntimeError", f"{NO_COUNT}2: out of memory", "cuda_out_of_memory"),
    (
        "RuntimeError",
        (
            "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable "
            "CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero."
        ),
        "cuda_no_device",
    ),
    ("RuntimeError", "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`", "cuda_error"),
    (
        "RuntimeError",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuda_out_of_memory",
    ),
    ("RuntimeError", "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "cuda_error"),
    # pytorch/pytorch#111187 and its kind: NCCL says that CUDA failed
    (
        "torch.distributed.DistBackendError",
        (
            "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1331, unhandled cuda error "
            "(run with NCCL_DEBUG=INFO for details), NCCL version 2.18.5\n"
            "ncclUnhandledCudaError: Call to CUDA function failed.\n"
            "Last error:\n"
            "Cuda failure 'out of memory'"
        ),
        "cuda_out_of_memory",
    ),
    (
        "torch.OutOfMemoryError",
        (
            "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of "
            "which 1.20 GiB is free."
        ),
        "cuda_out_of_memory",
    ),
    ("RuntimeError", "unable to write to file </torch_4711_28_0>: No space left on device (28)", "shared_memory_full"),
    (
        "RuntimeError",
        (
            "DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's "
            "workers are out of shared memory. Please try to raise your shared memory limit."
        ),
        "shared_memory_full",
    ),
    # torch/csrc/DataLoader.cpp
    ("RuntimeError", "DataLoader worker (pid 4711) is killed by signal: Aborted. ", "aborted"),
    ("RuntimeError", "DataLoader worker (pid 4711) is killed by signal: Killed. ", "signal"),
    ("RuntimeError", "DataLoader worker (pid 4711) is killed by signal: Terminated. ", "signal"),
    ("OSError", "[Errno 28] No space left on device: '/scratch/x.pt'", "disk_full"),
    ("OSError", "[Errno 122] Disk quota exceeded", "disk_full"),
    ("OSError", "[Errno 28] No space left on device: '/dev/shm/psm_1'", "shared_memory_full"),
    ("OSError", "[Errno 116] Stale file handle: '/data/shard-3'", "file_system"),
    ("OSError", "[Errno 5] Input/output error", "file_system"),
    ("OSError", "[Errno 30] Read-only file system: '/data/x'", "file_system"),
    ("OSError", "[Errno 107] Transport endpoint is not connected: '/mnt/fuse/x'", "file_system"),
    ("OSError", "[Errno 108] Cannot send after transport endpoint shutdown: '/lustre/x'", "file_system"),
    ("OSError", "[Errno 107] Transport endpoint is not connected", "exception"),
    ("ImportError", "libcudart.so.12: cannot open shared object file: No such file or directory", "import_error"),
]


@pytest.mark.parametrize(("type_name", "text", "word"), PRINTED)
def test_what_torch_cuda_and_nccl_print_has_its_class(type_name: str, text: str, word: str) -> None:
    assert raised(type_name, text, file=TORCH).failure_class.value == word


@pytest.mark.parametrize(("type_name", "text", "word"), PRINTED)
def test_a_users_value_error_with_the_same_words_is_an_exception(type_name: str, text: str, word: str) -> None:
    quoted = f"the service said: {text}"
    assert raised("ValueError", quoted, source="raise ValueError(text)").failure_class is FailureClass.EXCEPTION


@pytest.mark.parametrize(
    ("type_name", "first"),
    [
        ("OSError", "Caught OSError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):"),
        (
            "torch.multiprocessing.spawn.ProcessRaisedException",
            "\n\n-- Process 1 terminated with the following error:\nTraceback (most recent call last):",
        ),
    ],
)
@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[Errno 5] Input/output error: '/lustre/shard-3'", "file_system"),
        ("[Errno 116] Stale file handle", "file_system"),
        ("[Errno 108] Cannot send after transport endpoint shutdown: '/lustre/x'", "file_system"),
        ("[Errno 107] Transport endpoint is not connected", "exception"),
        ("[Errno 28] No space left on device: '/scratch/x'", "disk_full"),
        ("[Errno 28] No space left on device: '/dev/shm/psm_1'", "shared_memory_full"),
        ("no such shard", "exception"),
    ],
)
def test_an_error_that_a_process_of_the_script_met_has_its_class(
    type_name: str, first: str, text: str, word: str
) -> None:
    frame = '  File "/home/user/project/data.py", line 12, in __getitem__\n    return read(": \'/data\'")'
    relayed = raised(type_name, f"{first}\n{frame}\nOSError: {text}", file=TORCH.replace("distributed_c10d", "spawn"))
    assert relayed.failure_class.value == word
    assert relayed.frame.endswith("data.py:12 in __getitem__")


def loader_killed_by(words: str, **more: Any) -> Classified:
    """What is said of a rank whose DataLoader worker a signal has ended (torch/csrc/DataLoader.cpp)."""
    message = f"RuntimeError: DataLoader worker (pid 4711) is killed by signal: {words}. "
    return classify(FailureEvidence(exit_code=1, written_by="bootstrap", message=message, **more))


def test_a_data_loaders_worker_that_was_killed_is_a_kill_for_memory_only_where_the_kernel_says_so() -> None:
    own, others = MemoryUse(oom_kills=1, peak=3 << 30, limit=4 << 30), MemoryUse(oom_kills=0)
    for_memory = loader_killed_by("Killed", memory=own)
    assert (for_memory.failure_class, for_memory.detail) == (FailureClass.OUT_OF_MEMORY, "3 of 4 GiB")
    killed = loader_killed_by("Killed", memory=others, host_oom_kills=2)
    assert killed.failure_class is FailureClass.SIGNAL
    assert (
        killed.detail == "the kernel of the node killed 2 processes for memory meanwhile, none of them in this cgroup"
    )
    assert loader_killed_by("Killed").detail == ""


def test_a_data_loaders_worker_that_the_agents_term_ended_is_torn_down() -> None:
    assert loader_killed_by("Terminated", sent_signal="SIGTERM").failure_class is FailureClass.TORN_DOWN
    assert loader_killed_by("Terminated").failure_class is FailureClass.SIGNAL


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        (
            "requests.exceptions.ConnectionError",
            "('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))",
        ),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
        ("RuntimeError", "Connection closed by peer"),
        ("RuntimeError", "CUDA error: the lab's camera has no CUDA"),
        ("mylib.DataError", "Timed out waiting 6000ms for recv operation to complete"),
    ],
)
def test_an_exception_of_the_users_code_is_no_victim_whatever_it_says(type_name: str, text: str) -> None:
    found = raised(type_name, text, source="raise error")
    assert MEANINGS[found.failure_class].blame is Blame.CULPRIT
    assert found.failure_class is FailureClass.EXCEPTION


def test_a_work_whose_wait_timed_out_is_a_collective_that_did() -> None:
    text = "Operation timed out!"  # torch/csrc/distributed/c10d/Work.cpp, below the script's own line
    found = raised("RuntimeError", text, source="work.wait(timedelta(seconds=2))")
    assert (found.failure_class, found.frame) == (FailureClass.COLLECTIVE_TIMEOUT, "train.py:7 in step")
    assert raised("RuntimeError", text, source="raise error").failure_class is FailureClass.EXCEPTION
    assert raised("RuntimeError", f"scan: {text}").failure_class is FailureClass.EXCEPTION


def test_a_gpu_without_memory_is_told_with_its_numbers() -> None:
    text = next(text for type_name, text, _ in PRINTED if type_name == "torch.OutOfMemoryError")
    assert raised("torch.OutOfMemoryError", text).detail == "20.00 GiB wanted, 1.20 GiB of 79.15 GiB free on GPU 0"


WATCHDOG = (  # hiyouga/LlamaFactory#7396 and NVIDIA/Megatron-LM#935
    "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600060 milliseconds "
    "before timing out.\nterminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG 1 Rank 6] Process group watchdog thread terminated with exception: "
    "[Rank 6] Watchdog caught collective operation timeout: WorkNCCL\n"
)
LOST = (  # tatsu-lab/stanford_alpaca#207
    "terminate called after throwing an instance of 'std::runtime_error'\n"
    "  what():  NCCL error: remote process exited or there was a network error, NCCL version 2.14.3\n"
)
# pytorch/pytorch#149984; ProcessGroupNCCL's heartbeat monitor calls any error that it tells other ranks a time-out.
SYSTEM = (
    "[rank3]:[E1130 10:00:01.1 ProcessGroupNCCL.cpp:2168] [Rank 3] Collective WorkNCCL(SeqNum=2) raised the following "
    "async exception: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.25.1\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
    "Last error:\nsocketProgress: Connection closed by remote peer node5<4242>\n"
)
DUMPS = (
    "[rank3]:[E1130 10:00:02.1 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump "
    "signal due to a collective timeout from this local rank and we will try our best to dump the debug info.\n"
)
ILLEGAL = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG 0 Rank 0] Process group watchdog thread terminated with exception: "
    "CUDA error: an illegal memory access was encountered\n"
)


INVALID_PEER = "Invalid access of peer GPU memory over nvlink or a hardware error"
SIZES = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:456] op.preamble.length <= "
    "op.nbytes. 8 vs 4. Received data size doesn't match expected size. Is there a distributed collective mismatch in "
    "your code?\nFatal Python error: Aborted\n\n"
)
CALLED = (
    "Thread 0x00007fc3cadbfb80 (most recent call first):\n"
    '  File "/x/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
    '  File "/home/ada/train.py", line 5 in <module>\n'
)


@pytest.mark.parametrize(("stack", "called"), [(CALLED, "all_reduce"), ("", "a collective")])
def test_tensors_of_different_sizes_are_told_of_the_rank_that_they_ended(stack: str, called: str) -> None:
    found = classify(FailureEvidence(signal_name="SIGABRT", stderr_tail=LOST + SIZES + stack))
    assert found.failure_class is FailureClass.ABORTED
    assert found.detail == (
        f"in {called} another rank sent 8 bytes, and it expected 4 at most: the ranks' tensors differ in size or type"
    )
    assert "Received data size doesn't match expected size" in found.message


@pytest.mark.parametrize(
    ("tail", "word"),
    [
        (WATCHDOG, "collective_timeout"),
        (LOST, "peer_lost"),
        (ILLEGAL, "cuda_illegal_access"),
        (ILLEGAL.replace("an illegal memory access was", "uncorrectable ECC error"), "cuda_hardware"),
        (ILLEGAL.replace("an illegal memory access was", INVALID_PEER), "cuda_hardware"),
        (SYSTEM + DUMPS, "peer_lost"),
        (SYSTEM.replace("socketProgress: Connection closed by remote peer", "no room at"), "aborted"),
        (DUMPS + SYSTEM, "collective_timeout"),
        ("train.py: Watchdog caught collective operation timeout, says the user\n", "aborted"),
        ("python: a.cc:3: int main(): Assertion `x > 0' failed.\n", "aborted"),
        ("", "aborted"),
    ],
)
def test_an_abort_is_told_by_what_torch_logged(tail: str, word: str) -> None:
    assert classify(FailureEvidence(signal_name="SIGABRT", stderr_tail=tail)).failure_class.value == word


def test_the_message_of_an_abort_is_what_torch_logged_without_the_group_that_it_names() -> None:
    found = classify(FailureEvidence(signal_name="SIGABRT", stderr_tail=ILLEGAL))
    assert found.message == (
        "Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered"
    )


@pytest.mark.parametrize("last", ["socketProgress: Connection closed by remote peer node5<4242>", "no room at node5"])
def test_the_message_of_an_abort_by_nccl_has_its_last_error(last: str) -> None:
    words = SYSTEM.replace("socketProgress: Connection closed by remote peer node5<4242>", last).partition(
        "NCCL error"
    )[2]
    thrown = "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  NCCL error"
    tail = f"{thrown}{words}frame #0: x\n"
    message = classify(FailureEvidence(signal_name="SIGABRT", stderr_tail=tail)).message
    assert telling_line(message).endswith(f"NCCL error: unhandled system error: {last}")


def test_a_kill_for_memory_is_told_with_peak_and_limit() -> None:
    memory = MemoryUse(oom_kills=1, peak=251 * GIB, limit=256 * GIB)
    found = classify(FailureEvidence(signal_name="SIGKILL", memory=memory))
    assert found.failure_class is FailureClass.OUT_OF_MEMORY
    assert found.message == "killed by the out-of-memory killer: 251 of 256 GiB"


@pytest.mark.parametrize(
    ("memory", "host", "word"),
    [
        (None, 0, "signal"),
        (None, 1, "out_of_memory"),
        (MemoryUse(oom_kills=0), 0, "signal"),
        (MemoryUse(oom_kills=0), 3, "signal"),  # those of another job
        (MemoryUse(oom_kills=2), 0, "out_of_memory"),
    ],
)
def test_the_nodes_kills_count_only_where_the_own_cgroup_is_unknown(
    memory: MemoryUse | None, host: int, word: str
) -> None:
    evidence = FailureEvidence(signal_name="SIGKILL", memory=memory, host_oom_kills=host)
    assert classify(evidence).failure_class.value == word


def test_a_victim_stays_one_though_another_rank_was_killed_for_memory() -> None:
    memory = MemoryUse(oom_kills=1, peak=GIB, limit=GIB)
    assert classify(captured("peer-killed-in-all-reduce", 0, memory=memory)).failure_class is FailureClass.PEER_LOST


@pytest.mark.parametrize("name", ["data-loader-killed", "pool-killed"])
def test_a_process_of_the_script_that_was_killed_for_memory_is_out_of_memory(name: str) -> None:
    memory = MemoryUse(oom_kills=1, peak=GIB, limit=GIB)
    found = classify(captured(name, memory=memory))
    assert (found.failure_class, found.detail) == (FailureClass.OUT_OF_MEMORY, "1 of 1 GiB")


def test_a_bus_error_with_a_full_shared_memory_is_that() -> None:
    space = FreeSpace(place="/dev/shm", free=0, total=64 << 20)
    assert classify(captured("bus-error", free=(space,))).failure_class is FailureClass.SHARED_MEMORY_FULL


def test_the_signal_that_the_agent_sent_is_a_stop_and_another_is_not() -> None:
    evidence = FailureEvidence(signal_name="SIGTERM", sent_signal="SIGTERM")
    assert classify(evidence).failure_class is FailureClass.TORN_DOWN
    assert classify(replace(evidence, signal_name="SIGSEGV")).failure_class is FailureClass.SEGMENTATION_FAULT


def test_a_process_that_survives_kill_is_unkillable() -> None:
    assert classify(FailureEvidence(has_survived_kill=True)).failure_class is FailureClass.UNKILLABLE


def test_a_shells_word_for_the_signal_of_its_last_command_counts() -> None:
    evidence = FailureEvidence(
        exit_code=137, stderr_tail="run.sh: line 3:  4711 Killed                  python train.py\n"
    )
    assert classify(evidence).message == "its program was killed by SIGKILL"
    assert classify(replace(evidence, memory=MemoryUse(oom_kills=1))).failure_class is FailureClass.OUT_OF_MEMORY
    assert classify(replace(evidence, stderr_tail="")).failure_class is FailureClass.EXIT_CODE


def test_of_a_torchrun_inside_the_workers_own_failure_is_taken() -> None:
    victim = without_error_file(captured("peer-killed-in-all-reduce", 0)).stderr_tail
    culprit = without_error_file(captured("value-error")).stderr_tail
    torchruns = (
        'Traceback (most recent call last):\n  File "/opt/python/bin/torchrun", line 8, in <module>\n    main()\n'
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrain.py FAILED\n"
    )
    found = classify(FailureEvidence(exit_code=1, stderr_tail=victim + culprit + torchruns))
    assert found.message == "ZeroDivisionError: division by zero"


def test_a_traceback_that_was_printed_long_before_the_end_is_not_the_failure() -> None:
    tail = captured("value-error").stderr_tail + "".join(f"epoch {number}\n" for number in range(20)) + "no data left\n"
    found = classify(FailureEvidence(exit_code=1, stderr_tail=tail))
    assert (found.failure_class, found.message) == (FailureClass.EXIT_CODE, "no data left")


def exited(code: str, stderr_tail: str) -> FailureEvidence:
    """What a rank leaves that ends with `sys.exit`, given the text with which Python prints its argument."""
    stack = 'Traceback (most recent call last):\n  File "/x/job.py", line 9, in <module>\n    sys.exit(it)\n'
    last = code if not code.isdigit() else stderr_tail.strip().rpartition("\n")[2]
    return FailureEvidence(
        exit_code=int(code) if code.isdigit() else 1,
        written_by="bootstrap",
        failure_class="exit_code",
        message=last,
        traceback=f"{stack}SystemExit: {code}\n",
        stderr_tail=stderr_tail,
    )


def test_an_exit_with_a_text_of_several_lines_is_told_from_its_first_line() -> None:
    text = "config is wrong: no batch size\nsee the manual, page 3"
    found = classify(exited(text, f"a warning\n{text}\nanother thread's last line\n"))
    assert (found.failure_class, found.message) == (FailureClass.EXIT_CODE, text)


def test_an_exit_with_a_number_is_told_by_the_last_line_of_standard_error() -> None:
    found = classify(exited("2", "usage: job.py\njob.py: error: required: --data\n"))
    assert (found.failure_class, found.message) == (FailureClass.EXIT_CODE, "job.py: error: required: --data")


DEAD_THREAD = (
    "Exception in thread Thread-1 (fetch):\nTraceback (most recent call last):\n"
    '  File "/opt/python/lib/python3.11/threading.py", line 982, in run\n    self._target(*self._args)\n'
    '  File "/home/user/project/job.py", line 8, in fetch\n    return {}["batch"]\n'
)


def test_an_exit_after_a_threads_exception_is_an_exit_that_names_it() -> None:
    found = classify(exited("1", DEAD_THREAD + "KeyError: 'batch'\n"))
    assert found.failure_class is FailureClass.EXIT_CODE
    assert found.message == "KeyError: 'batch' (in Thread-1 (fetch), at job.py:8 in fetch)"


def test_what_is_printed_after_a_threads_exception_stands_behind_its_thread() -> None:
    found = classify(exited("1", DEAD_THREAD + "KeyError: 'batch'\na warning\n"))
    assert found.message == "KeyError: 'batch' (in Thread-1 (fetch), at job.py:8 in fetch)\na warning"


def test_a_threads_exception_is_not_told_where_the_exit_says_why() -> None:
    text = "the loader stopped"
    found = classify(exited(text, f"{DEAD_THREAD}KeyError: 'batch'\n{text}\n"))
    assert (found.failure_class, found.message) == (FailureClass.EXIT_CODE, text)


def test_a_threads_exception_counts_without_an_error_file_too() -> None:
    tail = DEAD_THREAD + "KeyError: 'batch'\n"
    assert classify(FailureEvidence(exit_code=1, stderr_tail=tail)).failure_class is FailureClass.EXIT_CODE


def test_a_threads_exception_of_a_more_telling_class_keeps_it() -> None:
    full = classify(exited("1", DEAD_THREAD + "OSError: [Errno 28] No space left on device\n"))
    assert full.failure_class is FailureClass.DISK_FULL
    lost = DEAD_THREAD + "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer\n"
    assert classify(exited("1", lost)).failure_class is FailureClass.PEER_LOST


def test_a_threads_exception_before_that_of_the_program_is_not_the_programs() -> None:
    after = 'Traceback (most recent call last):\n  File "/x/job.py", line 9, in <module>\n    main()\nValueError: bad\n'
    tail = f"{DEAD_THREAD}KeyError: 'batch'\n{after}"
    assert classify(FailureEvidence(exit_code=1, stderr_tail=tail)).failure_class is FailureClass.EXCEPTION


def test_a_message_that_begins_with_a_newline_keeps_its_words() -> None:
    assert raised("RuntimeError", "\n\nnothing to train on").message == "RuntimeError: nothing to train on"


PIECES = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        [
            "Traceback (most recent call last):\n",
            '  File "/x/train.py", line 3, in step\n',
            "    raise\n",
            "ValueError: x\n",
            "\nDuring handling of the above exception, another exception occurred:\n\n",
            "\nThe above exception was the direct cause of the following exception:\n\n",
            "[rank0]: ",
            "  | ",
            "Current thread 0x1 (most recent call first):\n",
            "RuntimeError: [/gloo/transport/tcp/pair.cc:1] Connection closed by peer\n",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
            "[Errno 99999]",
        ]
    ),
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@given(
    evidence=st.builds(
        FailureEvidence,
        exit_code=st.none() | st.integers(-300, 300),
        signal_name=st.none() | st.sampled_from(["SIGKILL", "SIGABRT", "SIGBUS", "SIG35", ""]),
        is_started=st.booleans(),
        written_by=st.sampled_from(["", "bootstrap", "record"]),
        failure_class=st.text(max_size=5),
        message=TEXTS,
        exception_type=st.text(max_size=20),
        traceback=TEXTS,
        stderr_tail=TEXTS,
        memory=st.none() | st.builds(MemoryUse, oom_kills=st.integers(0, 3), peak=st.none() | st.integers(0)),
        host_oom_kills=st.integers(0, 3),
        sent_signal=st.sampled_from(["", "SIGTERM"]),
        directory=st.sampled_from(["", "/", "/x", "x"]),
    )
)
def test_any_evidence_has_a_class_and_a_message(evidence: FailureEvidence) -> None:
    found = classify(evidence)
    assert found.failure_class in MEANINGS
    assert found.message


def test_the_rules_have_names_of_their_own_and_the_last_ones_always_hold() -> None:
    for names in ([rule.name for rule in RULES_FOR_ENDS], [rule.name for rule in RULES_FOR_EXCEPTIONS]):
        assert len(set(names)) == len(names)
    assert RULES_FOR_ENDS[-1].failure_class is FailureClass.EXIT_CODE
    assert RULES_FOR_EXCEPTIONS[-1].failure_class is FailureClass.EXCEPTION


LOADER_TERMINATED = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Terminated. "
ENDS = [
    (FailureEvidence(is_started=False, message="no such file"), "start_failed"),
    (FailureEvidence(has_survived_kill=True, signal_name="SIGTERM"), "unkillable"),
    (FailureEvidence(signal_name="SIGTERM", sent_signal="SIGTERM"), "torn_down"),
    (FailureEvidence(exit_code=1, sent_signal="SIGTERM", stderr_tail=STOPPED_LAUNCHER), "torn_down"),
    (FailureEvidence(exit_code=1, stderr_tail=STOPPED_LAUNCHER), "exception"),
    (
        FailureEvidence(exit_code=1, written_by="bootstrap", message=LOADER_TERMINATED, sent_signal="SIGTERM"),
        "torn_down",
    ),
    (FailureEvidence(signal_name="SIGKILL", memory=MemoryUse(oom_kills=1)), "out_of_memory"),
    (FailureEvidence(signal_name="SIGKILL", host_oom_kills=1), "out_of_memory"),
    (
        FailureEvidence(signal_name="SIGBUS", free=(FreeSpace(place="/dev/shm", free=0, total=GIB),)),
        "shared_memory_full",
    ),
    (FailureEvidence(signal_name="SIGABRT", stderr_tail=LOST + SIZES), "aborted"),
    (FailureEvidence(signal_name="SIGABRT", stderr_tail=WATCHDOG), "collective_timeout"),
    (FailureEvidence(signal_name="SIGABRT", stderr_tail=LOST), "peer_lost"),
    (FailureEvidence(signal_name="SIGABRT", stderr_tail=ILLEGAL), "cuda_illegal_access"),
    (FailureEvidence(signal_name="SIGABRT", stderr_tail=ILLEGAL.replace("an illegal", "x")), "cuda_error"),
    (
        FailureEvidence(signal_name="SIGABRT", stderr_tail="  what():  CUDA error: out of memory\n"),
        "cuda_out_of_memory",
    ),
    (
        FailureEvidence(signal_name="SIGABRT", stderr_tail="  what():  CUDA error: hardware stack error\n"),
        "cuda_hardware",
    ),
]


def _wrong_cases() -> int:
    """Count the cases above that have another class than they should."""
    killed = classify(captured("pool-killed", memory=MemoryUse(oom_kills=1))).failure_class
    return (
        sum(classify(captured(name, rank)).failure_class.value != word for name, rank, word, _ in REAL)
        + sum(raised(name, text, file=TORCH).failure_class.value != word for name, text, word in PRINTED)
        + sum(classify(evidence).failure_class.value != word for evidence, word in ENDS)
        + (killed is not FailureClass.OUT_OF_MEMORY)
    )


def test_no_case_is_wrong_with_all_the_rules() -> None:
    assert _wrong_cases() == 0


@pytest.mark.parametrize("name", [rule.name for rule in RULES_FOR_EXCEPTIONS[:-1]])
def test_a_rule_for_exceptions_that_is_left_out_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = tuple(rule for rule in RULES_FOR_EXCEPTIONS if rule.name != name)
    monkeypatch.setattr(module, "RULES_FOR_EXCEPTIONS", rules)
    assert _wrong_cases() > 0


@pytest.mark.parametrize("name", [rule.name for rule in RULES_FOR_ENDS[:-1]])
def test_a_rule_for_ends_that_is_left_out_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RULES_FOR_ENDS", tuple(rule for rule in RULES_FOR_ENDS if rule.name != name))
    assert _wrong_cases() > 0


def test_texts_alone_would_make_victims_of_culprits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exception_rules.Occurrence, "is_of_torch", property(lambda _: True))
    lies = [
        classify(captured(name)).failure_class
        for name in ("users-lie", "users-connection-error", "users-runtime-error")
    ]
    assert FailureClass.EXCEPTION not in lies, "the planted bug is seen by the cases above"


def test_a_frame_that_a_message_quotes_is_not_the_frame_of_the_failure() -> None:
    quoted = "bad batch 17\n\nDuring handling of the above exception, another exception occurred:\n\n"
    quoted += (
        'Traceback (most recent call last):\n  File "/srv/x.py", line 3, in f\nOSError: [Errno 5] Input/output error'
    )
    own = 'Traceback (most recent call last):\n  File "/home/ada/job.py", line 4, in <module>\n    raise error\n'
    found = classify(
        FailureEvidence(
            exit_code=1,
            written_by="bootstrap",
            failure_class="exception",
            message=f"ValueError: {quoted}",
            traceback=f"{own}ValueError: {quoted}\n",
        )
    )
    assert (found.failure_class, found.frame) == (FailureClass.EXCEPTION, "job.py:4")


def test_a_project_in_a_folder_named_as_one_of_torchs_is_the_users_own() -> None:
    text = """Traceback (most recent call last):
  File "/home/ada/torch/distributed/train.py", line 40, in <module>
    main()
  File "/home/ada/torch/distributed/loop/steps.py", line 12, in main
    dist.all_reduce(value)
  File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
    work.wait()
ValueError: bad batch
"""
    chain = parse_traceback(text)
    frame = innermost_of_user(chain, chain[-1])
    assert frame is not None
    assert (frame.file, frame.line) == ("/home/ada/torch/distributed/loop/steps.py", 12)


def test_torchs_code_in_a_checkout_is_not_the_users() -> None:
    text = """Traceback (most recent call last):
  File "/home/ada/train.py", line 4, in <module>
    dist.barrier()
  File "/home/ada/pytorch/torch/distributed/distributed_c10d.py", line 3252, in barrier
    work.wait()
RuntimeError: no
"""
    chain = parse_traceback(text)
    frame = innermost_of_user(chain, chain[-1])
    assert frame is not None
    assert frame.file == "/home/ada/train.py"


@pytest.mark.parametrize("name", [".", "..", " . "])
def test_an_exception_whose_name_says_nothing_has_a_message_nevertheless(name: str) -> None:
    found = classify(FailureEvidence(written_by="bootstrap", exception_type=name))
    assert (found.failure_class, found.message) == (FailureClass.EXCEPTION, "an exception without a name")


def test_the_frame_of_what_torch_compiled_is_the_line_in_it_that_failed() -> None:
    text = (
        "RuntimeError when making fake tensor call\n  Explanation: it failed\n\nfrom user code:\n"
        '    File "/home/user/project/train.py", line 30, in forward\n    return head(x)\n'
        '  File "/home/user/project/model.py", line 8, in head\n    return x.view(7)\n           ^^^^^^^^^\n\n'
        "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace"
    )
    file = "/env/lib/python3.11/site-packages/torch/_dynamo/exc.py"
    assert raised("torch._dynamo.exc.TorchRuntimeError", text, file=file).frame == "model.py:8 in head"
    assert raised("RuntimeError", text, file=file).frame == "train.py:4"


@pytest.mark.parametrize(
    ("source", "last", "detail"),
    [
        ("raise KeyboardInterrupt", "KeyboardInterrupt", "the script raised KeyboardInterrupt"),
        (
            'raise KeyboardInterrupt("enough")',
            "KeyboardInterrupt: enough",
            "the script raised KeyboardInterrupt: enough",
        ),
        ("step()", "KeyboardInterrupt", ""),
    ],
)
def test_an_interrupt_is_told_with_its_line_and_whether_the_script_raised_it(
    source: str, last: str, detail: str
) -> None:
    printed = (
        'Traceback (most recent call last):\n  File "/home/user/project/train.py", line 12, in <module>\n'
        f"    {source}\n{last}\n"
    )
    evidence = FailureEvidence(signal_name="SIGINT", stderr_tail=printed, directory="/home/user/project")
    found = classify(evidence)
    assert (found.failure_class, found.message) == (FailureClass.SIGNAL, "killed by SIGINT")
    assert (found.frame, found.detail) == ("train.py:12", detail)
    other = classify(replace(evidence, signal_name="SIGHUP"))
    assert (other.frame, other.detail) == ("", "")
