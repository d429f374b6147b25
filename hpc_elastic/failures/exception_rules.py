"""The rules that give an exception its class, in their order.

The texts are those that torch 2.13, gloo, NCCL 2.14 to 2.29, CUDA 12, Python and glibc print. Where a comment names no
other source, they were printed by real programs (`tests/captured/failures`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hpc_elastic.failures.classes import FailureClass
from hpc_elastic.failures.evidence import FailureEvidence
from hpc_elastic.failures.output_end import without_colours
from hpc_elastic.failures.traceback_text import LAUNCHERS_ERROR, RELAYED, Raised

_TORCH_FILE = re.compile(r"/torch/[\w/]+\.py$")
_RELAYS_FILE = re.compile(r"/torch/_utils\.py$")  # ExceptionWrapper.reraise
_OPERATORS_FILE = re.compile(r"/torch/_ops\.py$")  # custom operators, and those of functional collectives
_DISTRIBUTED_FILE = re.compile(r"/torch/distributed/")
_SETTING_UP = re.compile(
    r"^(?:init_process_group|_new_process_group_helper|new_group|_new_group_with_tag|_create_c10d_store|rendezvous|"
    r"_env_rendezvous_handler|_tcp_rendezvous_handler|_store_based_barrier|init_device_mesh)$"
)
_TORCHS_TYPES = ("DistError", "DistBackendError", "DistNetworkError", "DistStoreError", "QueueEmptyError")
_GLOO_PLACE = re.compile(r"\[(?:[^\]\s]*/)?gloo/[\w/]+\.(?:cc|h):\d+\] ?")  # of gloo's exceptions (gloo/common/error.h)
_ERRNO = re.compile(r"\[Errno (\d{1,4})\]")
_SHARED = re.compile(r"/dev/shm|</torch_|/torch_\d")  # multiprocessing's files, and torch's (ATen/MapAllocator.cpp)
_WORK_TIMED_OUT = "Operation timed out!"  # torch/csrc/distributed/c10d/Work.cpp, of Work.wait with a timeout
# What torch's launcher says of its workers: torch/distributed/elastic/multiprocessing/errors/__init__.py.
_LAUNCHED = re.compile(
    r"=+\n([^\n]+)\n-+\n(?s:.*)\nRoot Cause \(first observed failure\):\n(?s:.*?)"
    r"\n  rank      : (\d+) [^\n]*\n  exitcode  : (-?\d+) (?s:.*?)\n  traceback : ([^\n]*)"
)
_NATIVE_STACK = re.compile(r"\n(?:Exception raised from |C\+\+ CapturedTraceback:|frame #0: )")
_WORKER_LOST = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\)"
)  # torch/utils/data/dataloader.py, DataLoader.cpp

# A data loader's process that ends takes its socket along, over which torch fetches the tensors that it has made.
_LOADER_FILE = re.compile(r"/torch/utils/data/dataloader\.py$")
_CONNECTION_FILE = re.compile(r"/multiprocessing/connection\.py$")
_CONNECTION_TYPES = ("ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError", "EOFError")


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """An exception, with what else is known of the worker."""

    raised: Raised
    evidence: FailureEvidence

    @property
    def text(self) -> str:
        """The exception's text, without gloo's place in front and the native stack behind it."""
        return tidy(self.raised.text)

    @property
    def own_text(self) -> str:
        """The text of the exception itself, where torch passes on what a process of the script raised."""
        text = self.raised.text
        if not RELAYED.match(text) or "Traceback (most recent call last):" not in text:
            return text
        return text.rstrip().rpartition("\n")[2].partition(": ")[2]

    @property
    def errno(self) -> int:
        """The number of the operating system's error, 0 for none."""
        found = _ERRNO.match(self.own_text)
        return int(found[1]) if found else 0

    @property
    def is_of_torch(self) -> bool:
        """Whether torch's own code raised it, and no line of the user's, whatever its text is."""
        if self.raised.was_raised_by_user:
            return False
        if self.raised.short_type in _TORCHS_TYPES or self.raised.type_name.startswith("torch."):
            return True
        if self.raised.short_type != "RuntimeError":
            return False
        if _GLOO_PLACE.match(self.raised.text) or self.text == _WORK_TIMED_OUT:
            return True
        inner = self.raised.innermost
        return inner is not None and bool(_TORCH_FILE.search(inner.file)) and not self._is_relayed

    @property
    def _is_relayed(self) -> bool:
        """Whether torch only passed on what other code raised: a data loader's worker, or an operator of anybody's."""
        inner = self.raised.innermost
        if inner is not None and _OPERATORS_FILE.search(inner.file):
            return not any(_DISTRIBUTED_FILE.search(frame.file) for frame in self.raised.frames)
        if inner is None or not _RELAYS_FILE.search(inner.file):
            return False
        return self.raised.text.startswith("Caught ") and not _DISTRIBUTED_FILE.search(self.raised.text)

    @property
    def is_native(self) -> bool:
        """Whether compiled code raised it, as far as one can know: a RuntimeError or a torch type, and no `raise`."""
        if self.raised.was_raised_by_user:
            return False
        return self.raised.short_type == "RuntimeError" or self.raised.type_name.startswith("torch.") or self._is_bare

    @property
    def _is_bare(self) -> bool:
        return self.raised.short_type in (*_TORCHS_TYPES, "AcceleratorError", "OutOfMemoryError")

    @property
    def is_setting_up(self) -> bool:
        """Whether a process group was being made."""
        return any(_SETTING_UP.match(frame.function) for frame in self.raised.frames)

    def says(self, pattern: str) -> bool:
        """Return whether its text has a match of a regular expression."""
        return bool(re.search(pattern, self.raised.text))


def _nothing(_: Occurrence) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceptionRule:
    """A rule for exceptions: its name and reason for people, the class that it gives, and when it holds."""

    name: str
    reason: str
    failure_class: FailureClass
    holds: Callable[[Occurrence], bool]
    tell: Callable[[Occurrence], str] = _nothing


def tidy(text: str) -> str:
    """Return an exception's text without colours, gloo's place in it, gloo's good wishes, and a native stack."""
    text = _NATIVE_STACK.split(without_colours(text), maxsplit=1)[0]
    text = _GLOO_PLACE.sub("gloo: ", text)
    return re.sub(r"\. This is typically caused by a remote worker .*", "", text).strip()


def describe(raised: Raised) -> str:
    """Return an exception as a line for people: its type, and what matters of its text."""
    text = tidy(raised.text)
    if text.startswith("Caught ") and "\nOriginal Traceback" in text:  # torch/_utils.py, ExceptionWrapper.reraise
        where = re.match(r"Caught \S+ (in [^\n]*?)\.?\n", text)
        last = [line for line in text.split("\n") if line.strip()][-1].strip()
        return f"{last} ({where[1]})" if where else last
    if raised.short_type == LAUNCHERS_ERROR and (found := _LAUNCHED.match(text)):
        ended = found[4] if found[4].startswith("Signal ") else f"exit code {found[3]}"
        return f"{LAUNCHERS_ERROR}: {found[1]}: its rank {found[2]}: {ended}"
    return f"{raised.short_type}: {text}" if text else raised.short_type


def lost_process(raised: Raised) -> str:
    """Return which process is gone where an exception names only its connection; empty if that is not known."""
    inner = raised.innermost
    if raised.short_type not in _CONNECTION_TYPES or inner is None or not _CONNECTION_FILE.search(inner.file):
        return ""
    is_fetching = any(_LOADER_FILE.search(frame.file) for frame in raised.frames)
    return "a DataLoader worker exited unexpectedly" if is_fetching else ""


def find_logged_loss(line: str) -> Raised | None:
    """Return gloo's exception in a line of a program's log, such as `CRITICAL: it failed: [.../pair.cc:537] ...`.

    None if there is none, or if the line tells of a chain of exceptions, which another one may have begun.
    """
    found = _GLOO_PLACE.search(line)
    if found is None or line.count("Traceback (most recent call last)") > 1:
        return None
    return Raised(type_name="RuntimeError", text=line[found.start() :].partition("\\n")[0])


def is_consequence(raised: Raised) -> bool:
    """Return whether an exception on the way out is one of torch's distributed code, such as of a missing group."""
    inner = raised.innermost
    return raised.link == "context" and inner is not None and bool(_DISTRIBUTED_FILE.search(inner.file))


def _has_peer_lost(seen: Occurrence) -> bool:
    return seen.says(
        r"Connection closed by peer|Connection reset by peer|Read error |Write error |Socket closed|Broken pipe|"
        r"Pair is not connected|Socket unexpectedly closed|"
        # NCCL's words for ncclRemoteError, with its last error after them (nccl src/init.cc, ncclGetErrorString;
        # NVIDIA/nccl#2076, #1928), and the same seen as an internal error (#795, #1514).
        r"remote process exited or there was a network error|ncclRemoteError|Connection closed by remote peer|"
        r"Failed to recv, got 0 bytes|Failed to send, sent 0 bytes|Connection was likely closed|"
        # torch/csrc/distributed/c10d/NCCLUtils.cpp: the rank's own watchdog has given up before, without a reason here.
        r"NCCL communicator was aborted on rank \d+\.\s*$"
    )


def _has_timed_out(seen: Occurrence) -> bool:
    return seen.says(
        r"Timed out waiting \d+ ?ms|Read timeout|Write timeout|Application timeout caused pair closure|"
        r"failed to pass monitoredBarrier|timed out in monitoredBarrier|successfully reached monitoredBarrier|"
        # torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, also with TORCH_NCCL_BLOCKING_WAIT (Megatron-LM#935).
        r"Watchdog caught collective operation timeout|(?i:wait timeout)(?: after|$)|Socket Timeout|"
        rf"{_WORK_TIMED_OUT}|ncclTimeout|NCCL timeout"
    )


# What NCCL says when it cannot make its connections to other ranks, at the first collective of a group (nccl
# src/misc/socket.cc; hkproj/pytorch-transformer-distributed#1, NVIDIA/nccl#975).
_NOT_CONNECTED = (
    r"socket(?:Start|Poll)Connect: [Cc]onnect |Net : Connect to |Call to connect returned |"
    r"no socket interface found|Call to ibv_modify_qp failed with (?:error )?Connection timed out"
)


def _is_rendezvous(seen: Occurrence) -> bool:
    if not seen.is_of_torch:
        return False
    if seen.says(
        r"connectFullMesh failed|The client socket has (?:timed out|failed to connect)|"
        r"Timed out after \d+ seconds waiting for clients|failed to connect/validate to host|"
        r"waitForInput: .*timed out|Timed out initializing process group in store based barrier"
    ) or seen.says(_NOT_CONNECTED):
        return True
    return seen.is_setting_up and (_has_peer_lost(seen) or _has_timed_out(seen) or seen.says(r"(?i)timed out"))


def _is_port_in_use(seen: Occurrence) -> bool:
    if seen.errno == 98:  # EADDRINUSE
        return True
    return seen.is_of_torch and seen.says(r"EADDRINUSE|(?i:address already in use)")


_NCCLS_SEGMENT = r"/dev/shm/nccl-|shared memory segment|posix_fallocate"


def _is_shared_memory_full(seen: Occurrence) -> bool:
    if seen.errno == 28 and _SHARED.search(seen.own_text):
        return True
    # ATen/MapAllocator.cpp: "unable to write to file </torch_...>: No space left on device (28)".
    if seen.is_native and seen.says(r"</torch_") and seen.says(r"No space left on device|unable to allocate shared"):
        return True
    # NCCL's segments (nccl src/misc/shmutils.cc, pytorch/ci-infra#490, NVIDIA/nccl#290).
    is_nccls = seen.is_native and seen.says("NCCL error") and seen.says(_NCCLS_SEGMENT)
    if is_nccls and seen.says(r"No space left on device|failed to extend /dev/shm"):
        return True
    if seen.errno == 28 and seen.evidence.full("/dev/shm") is not None and _is_in_multiprocessing(seen):
        return True
    return bool(_WORKER_LOST.match(seen.raised.text)) and seen.says(r"killed by signal: Bus error|out of shared memory")


def _is_in_multiprocessing(seen: Occurrence) -> bool:
    inner = seen.raised.innermost
    return inner is not None and bool(re.search(r"/multiprocessing/", inner.file))


def _tell_shared_memory(seen: Occurrence) -> str:
    space = next((each for each in seen.evidence.free if each.place == "/dev/shm"), None)
    return "" if space is None else f"/dev/shm has {_size(space.free)} of {_size(space.total)} free"


def _size(count: int) -> str:
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count // size} {unit}"
    return f"{count} bytes"


def _is_disk_full(seen: Occurrence) -> bool:
    if seen.errno in (28, 122):  # ENOSPC, EDQUOT
        return True
    if seen.raised.was_raised_by_user:
        return False
    if seen.says(r"code: (?:28|122), kind: ") and seen.raised.short_type == "SafetensorError":  # Rust's io::Error
        return True
    if seen.raised.type_name.startswith("sqlite3.") and seen.says(r"database or disk is full"):
        return True
    if seen.raised.short_type != "RuntimeError":
        return False
    if seen.says(r"No space left on device|Disk quota exceeded"):
        return True
    # caffe2/serialize/inline_container.cc says of a write that failed nothing about the reason.
    is_writer = seen.says(r"inline_container\.cc:\d+\].*(?:file write failed|unexpected pos|failed writing)")
    is_writer = is_writer or seen.says(r"^basic_ios::clear: iostream error$")  # of its stream, where that throws first
    return is_writer and any(space.is_full for space in seen.evidence.free)


def _tell_disk(seen: Occurrence) -> str:
    full = [space for space in seen.evidence.free if space.takes_no_file]
    return ", ".join(
        f"{space.place} has no inode left for more than its {space.files} files"
        if space.files
        else f"{space.place} has {_size(space.free)} of {_size(space.total)} free"
        for space in full
    )


def _is_file_system(seen: Occurrence) -> bool:
    if seen.errno in (5, 30, 116, 121):  # EIO, EROFS, ESTALE, EREMOTEIO
        return True
    # ENODEV, ENOTCONN (a FUSE server or a Lustre target is gone), ESHUTDOWN, ETIMEDOUT, EHOSTDOWN, ENOTRECOVERABLE:
    # sockets have most of them too, but no file's name.
    if seen.errno in (19, 107, 108, 110, 112, 131) and re.search(r": '(?:/|\w)", seen.own_text):
        return True
    return seen.is_native and seen.says(r"Stale file handle|Input/output error|Read-only file system")


def _is_import_error(seen: Occurrence) -> bool:
    if seen.raised.short_type in ("ImportError", "ModuleNotFoundError", "ZipImportError"):
        return True
    # dlopen's words (glibc elf/dl-load.c), which ctypes raises as an OSError.
    words = r"cannot open shared object file|undefined symbol: |version `\S+' not found"
    return seen.raised.short_type == "OSError" and not seen.errno and seen.says(words)


def _is_cuda(pattern: str) -> Callable[[Occurrence], bool]:
    """Return the rule for an error of CUDA, or of a library of it, that says what the pattern matches."""
    start = r"(?:CUDA error|HIP error|CUDA driver error|Cuda failure|CUDA_ERROR|CUDA call failed)"
    words = re.compile(
        rf"{start}[^\n]{{0,300}}?(?:{pattern})|NCCL [^\n]{{0,500}}unhandled cuda error(?s:.*)(?:{pattern})"
    )
    return lambda seen: seen.is_native and bool(words.search(seen.raised.text))


# c10/cuda/CUDAFunctions.cpp, with the number and the words of CUDA behind it: 802, "system not yet initialized", where
# the fabric manager of the node does not run; 804 of an unfit driver; 2 of a GPU whose memory is full.
_NO_COUNT = r"^Unexpected error from cudaGetDeviceCount\(\)(?s:.*)Error "


def _is_out_of_gpu(seen: Occurrence) -> bool:
    if seen.raised.type_name in ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError"):
        return True
    if seen.raised.short_type == "OutOfMemoryError" and seen.is_native and not seen.raised.frames:
        return True
    # c10/cuda/CUDACachingAllocator.cpp; CUBLAS_STATUS_ALLOC_FAILED is its usual form at cublasCreate.
    words = r"^(?:CUDA|HIP|XPU) out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    return seen.is_native and (seen.says(words) or _is_cuda("out of memory")(seen) or seen.says(_NO_COUNT + "2: "))


def _tell_gpu(seen: Occurrence) -> str:
    words = (
        r"Tried to allocate ([\d.]+ \w+)\. GPU (\d+) has a total capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free"
    )
    found = re.search(words, seen.raised.text)
    return f"{found[1]} wanted, {found[4]} of {found[3]} free on GPU {found[2]}" if found else ""


def _has_no_gpu(seen: Occurrence) -> bool:
    # torch/cuda/__init__.py (_check_driver, _lazy_init), c10/cuda/CUDAFunctions.cpp, torch/serialization.py.
    words = (
        rf"{_NO_COUNT}|^CUDA unknown error - this may be due to an incorrectly set up environment|"
        r"^No CUDA GPUs are available|^Found no NVIDIA driver on your system|^Torch not compiled with CUDA enabled|"
        r"^No HIP GPUs are available|^Attempting to deserialize object on a? ?CUDA device|"
        r"^The NVIDIA driver on your system is too old|NVML_ERROR|ProcessGroupNCCL is only supported with GPUs, no GPUs"
    )
    if seen.raised.was_raised_by_user or seen.raised.short_type not in ("RuntimeError", "AssertionError", "ValueError"):
        return _is_cuda(_NO_DEVICE)(seen)
    return seen.says(words) or _is_cuda(_NO_DEVICE)(seen)


# What cudaGetErrorString says (CUDA 12, driver_types.h: cudaErrorECCUncorrectable and its neighbours).
HARDWARE = (
    "uncorrectable ECC error|uncorrectable NVLink error|hardware stack error|GPU is lost|fallen off the bus|"
    "GPU requires reset|Invalid access of peer GPU memory over nvlink or a hardware error|"
    "unable to determine the device handle|MPS (?:server|client) .*(?:failed|terminated)|contained error|unknown error"
)
ILLEGAL = (
    "an illegal memory access was encountered|device-side assert triggered|misaligned address|"
    "an illegal instruction was encountered|unspecified launch failure|invalid program counter|"
    "operation not supported on global/shared address space|invalid device pointer"
)
_NO_DEVICE = (
    "no CUDA-capable device is detected|invalid device ordinal|CUDA-capable device\\(s\\) is/are busy or unavailable|"
    "driver version is insufficient|system not yet initialized|initialization error"
)


def _is_any_cuda(seen: Occurrence) -> bool:
    words = (
        r"^(?:CUDA|HIP) error|^CUDA driver error|CUBLAS_STATUS_|CUSPARSE_STATUS_|CUSOLVER_STATUS_|CUFFT_|"
        r"^cuDNN error|CUDNN_STATUS_|unhandled cuda error"
    )
    return seen.is_native and seen.says(words)


def _is_killed_child(seen: Occurrence) -> bool:
    """Return whether a process that the script started was killed, while the kernel killed for memory."""
    if not _oom_kills(seen.evidence):
        return False
    names = ("BrokenProcessPool", "TerminatedWorkerError", "ProcessExitedException", "CalledProcessError")
    if seen.raised.short_type in names:
        return seen.says(r"SIGKILL|terminated abruptly|was killed|unexpectedly terminated")
    return bool(_WORKER_LOST.match(seen.raised.text)) and seen.says(r"signal: Killed|exited unexpectedly\b(?! with)")


def _oom_kills(evidence: FailureEvidence) -> int:
    return evidence.memory.oom_kills if evidence.memory is not None else evidence.host_oom_kills


def tell_memory(evidence: FailureEvidence) -> str:
    """Return the memory's peak and limit, such as `251 of 256 GiB`; "" if neither is known."""
    memory = evidence.memory
    if memory is None:
        return ""
    if memory.peak is not None and memory.limit is not None:
        peak, limit = _size(memory.peak), _size(memory.limit)
        same = peak.split(" ")[-1] == limit.split(" ")[-1]
        return f"{peak.split(' ')[0] if same else peak} of {limit}"
    return f"limit {_size(memory.limit)}" if memory.limit is not None else ""


def _is_data_loaders(signal_words: str) -> Callable[[Occurrence], bool]:
    return lambda seen: bool(_WORKER_LOST.match(seen.raised.text)) and seen.says(rf"killed by signal: {signal_words}")


def _is_stopped_loader(seen: Occurrence) -> bool:
    """Whether the agent's TERM, which goes to all that a worker has started, ended a data loader's worker."""
    return seen.evidence.sent_signal == "SIGTERM" and _is_data_loaders("Terminated")(seen)


def _tell_loaders_end(seen: Occurrence) -> str:
    is_killed = seen.says(r"killed by signal: Killed") and seen.evidence.memory is not None
    return (
        f"{tell_host_oom(seen.evidence)}, none of them in this cgroup"
        if is_killed and seen.evidence.host_oom_kills
        else ""
    )


def tell_host_oom(evidence: FailureEvidence) -> str:
    """Return how many processes of the whole node the kernel has killed for memory."""
    count = evidence.host_oom_kills
    return f"the kernel of the node killed {count} process{'es' if count > 1 else ''} for memory meanwhile"


def _is_stopped_launcher(seen: Occurrence) -> bool:
    """Whether torchrun, as the command of a worker, says that the agent's TERM ended it (elastic/multiprocessing)."""
    return (
        seen.evidence.sent_signal == "SIGTERM"
        and seen.raised.short_type == "SignalException"
        and seen.says(r"^Process \d+ got signal: (?:15|SIGTERM)\b")
    )


RULES_FOR_EXCEPTIONS: tuple[ExceptionRule, ...] = (
    ExceptionRule(
        name="launcher stopped by its agent",
        reason="torchrun, as the command of a worker, says that it got the signal that the agent had sent",
        failure_class=FailureClass.TORN_DOWN,
        holds=_is_stopped_launcher,
    ),
    ExceptionRule(
        name="data loader's worker stopped by the agent",
        reason="torch says that the signal which the agent had sent ended a data loader's worker",
        failure_class=FailureClass.TORN_DOWN,
        holds=_is_stopped_loader,
    ),
    ExceptionRule(
        name="port in use",
        reason="EADDRINUSE of Python, or of torch's store: another process holds the port",
        failure_class=FailureClass.PORT_IN_USE,
        holds=_is_port_in_use,
    ),
    ExceptionRule(
        name="GPU out of memory",
        reason="torch.OutOfMemoryError, or an error of CUDA that says so",
        failure_class=FailureClass.CUDA_OUT_OF_MEMORY,
        holds=_is_out_of_gpu,
        tell=_tell_gpu,
    ),
    ExceptionRule(
        name="GPU hardware",
        reason="an error of CUDA that only hardware or its driver makes: ECC, NVLink, a lost GPU",
        failure_class=FailureClass.CUDA_HARDWARE,
        holds=_is_cuda(HARDWARE),
    ),
    ExceptionRule(
        name="GPU illegal access",
        reason="an error of CUDA that a kernel made by what it did: an address, an instruction, an assertion",
        failure_class=FailureClass.CUDA_ILLEGAL_ACCESS,
        holds=_is_cuda(ILLEGAL),
    ),
    ExceptionRule(
        name="no GPU",
        reason="torch or CUDA finds no GPU, no driver, or not the one that was asked for",
        failure_class=FailureClass.CUDA_NO_DEVICE,
        holds=_has_no_gpu,
    ),
    ExceptionRule(
        name="other error of CUDA",
        reason="an error of CUDA, cuBLAS, cuDNN or another library of it that no rule above knows",
        failure_class=FailureClass.CUDA_ERROR,
        holds=_is_any_cuda,
    ),
    ExceptionRule(
        name="process group did not come about",
        reason="torch raised it in init_process_group or new_group, or it is of the connections made there",
        failure_class=FailureClass.RENDEZVOUS,
        holds=_is_rendezvous,
    ),
    ExceptionRule(
        name="collective timed out",
        reason="torch raised it, and it says that an operation, a barrier or a key of the store did not come in time",
        failure_class=FailureClass.COLLECTIVE_TIMEOUT,
        holds=lambda seen: seen.is_of_torch and _has_timed_out(seen),
    ),
    ExceptionRule(
        name="peer lost",
        reason="torch raised it, and it says that a connection to another rank or to the store broke",
        failure_class=FailureClass.PEER_LOST,
        holds=lambda seen: seen.is_of_torch and _has_peer_lost(seen),
    ),
    ExceptionRule(
        name="process of the script killed for memory",
        reason="a data loader's worker or a process of a pool was killed, and the kernel has killed for memory",
        failure_class=FailureClass.OUT_OF_MEMORY,
        holds=_is_killed_child,
        tell=lambda seen: tell_memory(seen.evidence),
    ),
    ExceptionRule(
        name="shared memory full",
        reason="ENOSPC of a file in /dev/shm, also of NCCL's, or a data loader's worker that died of a bus error",
        failure_class=FailureClass.SHARED_MEMORY_FULL,
        holds=_is_shared_memory_full,
        tell=_tell_shared_memory,
    ),
    ExceptionRule(
        name="segmentation fault of a data loader's worker",
        reason="torch says that SIGSEGV ended a data loader's worker",
        failure_class=FailureClass.SEGMENTATION_FAULT,
        holds=_is_data_loaders("Segmentation fault"),
    ),
    ExceptionRule(
        name="abort of a data loader's worker",
        reason="torch says that SIGABRT ended a data loader's worker",
        failure_class=FailureClass.ABORTED,
        holds=_is_data_loaders("Aborted"),
    ),
    ExceptionRule(
        name="signal to a data loader's worker",
        reason="torch says that another signal, such as SIGKILL, ended a data loader's worker",
        failure_class=FailureClass.SIGNAL,
        holds=_is_data_loaders(r"\w"),
        tell=_tell_loaders_end,
    ),
    ExceptionRule(
        name="disk full",
        reason="ENOSPC or EDQUOT, or a failed write of torch.save where a file system is full",
        failure_class=FailureClass.DISK_FULL,
        holds=_is_disk_full,
        tell=_tell_disk,
    ),
    ExceptionRule(
        name="file system failed",
        reason="EIO, EROFS, ESTALE, EREMOTEIO; or, for a file by its name, a server that is gone",
        failure_class=FailureClass.FILE_SYSTEM,
        holds=_is_file_system,
    ),
    ExceptionRule(
        name="import error",
        reason="ImportError or ModuleNotFoundError, or a shared library that cannot be loaded",
        failure_class=FailureClass.IMPORT_ERROR,
        holds=_is_import_error,
    ),
    ExceptionRule(
        name="exception",
        reason="any other exception",
        failure_class=FailureClass.EXCEPTION,
        holds=lambda _: True,
    ),
)
