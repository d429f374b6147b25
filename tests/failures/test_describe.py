"""A failure in one line, and the signature by which failures are alike."""

from __future__ import annotations

import random
import re
import time
from dataclasses import replace

import pytest

from hpc_elastic.failures.describe import describe_failure, failure_signature
from hpc_elastic.rundir.records import FailureRecord
from tests.membership.script import a_failure

VALUE_ERROR = a_failure(1)
KEY_ERROR = a_failure(1, message="KeyError: 'x'")
KILLED = a_failure(2, exitcode=-9, failure_class="signal", message="killed by SIGKILL")
KILLED_BY_SEGV = replace(KILLED, signal_name="SIGSEGV", failure_class="segmentation_fault")
ABORTED = replace(KILLED, signal_name="SIGABRT", failure_class="aborted", message="killed by SIGABRT")
CORRUPT_HEAP = replace(ABORTED, message="killed by SIGABRT: malloc(): corrupted top size")
OTHER_SIZES = replace(
    ABORTED, message="killed by SIGABRT: op.preamble.length <= op.nbytes", detail="they differ in size"
)
ECC = replace(ABORTED, failure_class="cuda_hardware", message="CUDA error: uncorrectable ECC error encountered")
ECC_WITH_XID = replace(ECC, detail="Xid 48 of GPU 0000:3b:00")
NO_ROOM = replace(KILLED, signal_name="SIGBUS", failure_class="shared_memory_full")
OUT_OF_MEMORY = replace(KILLED, failure_class="out_of_memory", detail="64 of 64 MiB")
ENDED = "ProcessRaisedException: it ended:"
SPAWNED = a_failure(1, message=f"{ENDED}\nTraceback (most recent call last):\n  File 'x'\nKeyError: 'x'\n")
TRIED = "RuntimeError(\"shape '[7]' is invalid for input of size 3\")"
COMPILED = f"""TorchRuntimeError: RuntimeError when making fake tensor call
  Explanation: Dynamo failed to run FX node with fake tensors: call_method view(*(FakeTensor(...), 7), **{{}}): \
got {TRIED}
  Hint: Your code may result in an error when running in eager.
"""
KEYS = """RuntimeError: Error(s) in loading state_dict for Linear:
\tMissing key(s) in state_dict: "weight".
\tUnexpected key(s) in state_dict: "module.weight".
"""
REFUSED = "Unsupported global: GLOBAL argparse.Namespace was not an allowed global by default. Please use `torch.x`."
NOT_LOADED = f"""UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two ways.
\t(1) In PyTorch 2.6, we changed the default value of the `weights_only` argument.
\tWeightsUnpickler error: {REFUSED}

Check the documentation of torch.load.
"""
FINGERPRINTS = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint("
    "SequenceNumber=0, OpType=ALLREDUCE, TensorShape=[7], TensorDtypes=Float, TensorDeviceTypes=TensorOptions("
    "dtype=float (default), device=cpu, memory_format=(nullopt))), but Rank 0 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=0, OpType=BARRIER).Collectives differ in the following aspects:   Op type"
)
# https://github.com/pytorch/ci-infra/pull/490, https://github.com/hkproj/pytorch-transformer-distributed/issues/1
NCCL = (
    "DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, unhandled system error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.18.6\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \n"
    "Last error:\n"
)
NO_ROUTE = "socketStartConnect: Connect to 192.168.19.14<52822> failed : No route to host"
CLOSED = "socketProgress: Connection closed by remote peer node5<4242>"
ABORTED_FOR_NCCL = (
    "DistBackendError: NCCL communicator was aborted on rank 3.  Original reason for failure was: NCCL error: remote "
    "process exited or there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed.\nLast error:\n"
    f"{CLOSED}"
)
DIFFER = "rank 1 runs ALLREDUCE [7] Float, rank 0 runs BARRIER"
NO_START = a_failure(0, failure_class="start_failed", message="No such file or directory: python")


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (VALUE_ERROR, "rank 1 on node0 failed with exit code 1: ValueError: no"),
        (a_failure(1, exitcode=3, message=" \n"), "rank 1 on node0 failed with exit code 3"),
        (a_failure(1, exitcode=3, message="exit code 3"), "rank 1 on node0 failed with exit code 3"),
        (a_failure(1, message="x" * 501), f"rank 1 on node0 failed with exit code 1: {'x' * 500} [...]"),
        (a_failure(1, message="\nfirst\nsecond"), "rank 1 on node0 failed with exit code 1: first"),
        (
            a_failure(1, message="ConfigError: =====\nInvalid configuration\n=====\nlr: must be positive"),
            "rank 1 on node0 failed with exit code 1: ConfigError: Invalid configuration",
        ),
        (a_failure(1, message="-----\n\n  no data\n"), "rank 1 on node0 failed with exit code 1: no data"),
        (a_failure(1, message="KeyError: '?'\n"), "rank 1 on node0 failed with exit code 1: KeyError: '?'"),
        (a_failure(1, message="=====\n"), "rank 1 on node0 failed with exit code 1: ====="),
        (KILLED, "rank 2 on node0 was killed by SIGKILL"),
        (KILLED_BY_SEGV, "rank 2 on node0 was killed by SIGSEGV: a segmentation fault in native code"),
        (ABORTED, "rank 2 on node0 was killed by SIGABRT: native code gave up"),
        (CORRUPT_HEAP, "rank 2 on node0 was killed by SIGABRT: malloc(): corrupted top size"),
        (OTHER_SIZES, "rank 2 on node0 was killed by SIGABRT: they differ in size"),
        (ECC, "rank 2 on node0 was killed by SIGABRT: CUDA error: uncorrectable ECC error encountered"),
        (
            ECC_WITH_XID,
            f"rank 2 on node0 was killed by SIGABRT: {ECC.message}; {ECC_WITH_XID.detail}",
        ),
        (NO_ROOM, "rank 2 on node0 was killed by SIGBUS: no room in shared memory (/dev/shm)"),
        (OUT_OF_MEMORY, "rank 2 on node0 was killed by the out-of-memory killer: 64 of 64 MiB in use"),
        (SPAWNED, "rank 1 on node0 failed with exit code 1: ProcessRaisedException: it ended: KeyError: 'x'"),
        (a_failure(1, message=f"{SPAWNED.message}\n  torn"), "rank 1 on node0 failed with exit code 1: " + ENDED),
        (
            a_failure(1, message=COMPILED),
            f"rank 1 on node0 failed with exit code 1: {COMPILED.splitlines()[0]}: {TRIED}",
        ),
        (
            a_failure(1, message=KEYS),
            f'rank 1 on node0 failed with exit code 1: {KEYS.splitlines()[0]} Missing key(s) in state_dict: "weight".',
        ),
        (
            a_failure(1, message=NOT_LOADED),
            f"rank 1 on node0 failed with exit code 1: UnpicklingError: Weights only load failed: {REFUSED}",
        ),
        (
            a_failure(1, message=FINGERPRINTS),
            f"rank 1 on node0 failed with exit code 1: {FINGERPRINTS.partition('. Rank')[0]}: {DIFFER}",
        ),
        (
            a_failure(1, message=NCCL + NO_ROUTE),
            "rank 1 on node0 failed with exit code 1: DistBackendError: NCCL error: unhandled system error: "
            + NO_ROUTE,
        ),
        (a_failure(1, message=NCCL), f"rank 1 on node0 failed with exit code 1: {NCCL.splitlines()[0]}"),
        (
            a_failure(1, message=ABORTED_FOR_NCCL),
            f"rank 1 on node0 failed with exit code 1: {ABORTED_FOR_NCCL.partition(', NCCL')[0]}: {CLOSED}",
        ),
        (a_failure(1, message="it ended:\n\n"), "rank 1 on node0 failed with exit code 1: it ended:"),
        (NO_START, "rank 0 on node0 could not be started: No such file or directory: python"),
    ],
)
def test_a_failure_is_told_in_one_line(failure: FailureRecord, text: str) -> None:
    assert describe_failure(failure) == text


def test_failures_differ_by_their_words_and_by_their_exit_code() -> None:
    signatures = {failure_signature(failure) for failure in (VALUE_ERROR, KEY_ERROR, KILLED, NO_START)}
    assert len(signatures) == 4


@pytest.mark.parametrize("seed", range(30))
def test_the_signature_of_a_long_message_is_that_of_all_of_it(seed: int) -> None:
    """Only so much of it is masked as the signature has room for: a head does that for each of 10,000 failures."""
    chance = random.Random(seed)
    words = chance.choice([["0x7f", "0x", "12", "a"], ["0x" + "7" * 40, "1" * 60], ["1" * 4000, "0", "b"]])
    message = "".join(chance.choice(words) for _ in range(1200))
    expected = re.sub(r"0x[0-9a-f]+|\d+", "#", message)[:500]
    assert failure_signature(replace(VALUE_ERROR, message=message)) == f"exception/1/{expected}"


@pytest.mark.parametrize("repeated", [" (run with ", ", NCCL version ", "NCCL error: x", "\n"])
def test_a_long_message_about_nccl_is_told_at_once(repeated: str) -> None:
    """The head describes each failure while it serves all nodes; what is read of a message is bounded."""
    message = "NCCL error: " + repeated * 100_000
    began = time.process_time()
    describe_failure(a_failure(1, message=message))
    assert time.process_time() - began < 5
