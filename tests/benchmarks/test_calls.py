"""What the benchmark reads out of strace's output. The lines are strace 6.1's, with shorter paths."""

from __future__ import annotations

from benchmarks.restart.calls import OTHERS, Trace, parse

AGENT = '["/v/python", "/p/launch.py", "hpc_elastic.agent.main", "/r"]'
SERVER = '["/v/python", "/p/launch.py", "hpc_elastic.worker.fork_server", "--parent", "46"]'
TORCH = 'openat(AT_FDCWD, "/v/torch/lib/libtorch_cpu.so", O_RDONLY|O_CLOEXEC) = 3'
NO_FILE = "0x7f, 0) = -1 ENOENT (No such file or directory)"
WARM = f"""\
10 1.000000 clone(child_stack=NULL, flags=SIGCHLD, child_tidptr=0x7f) = 19 /* 11 in strace's PID NS */
11 1.100000 execve("/usr/sbin/slurmstepd", ["/usr/sbin/slurmstepd"], 0x55 /* 2 vars */) = 0
11 1.200000 clone(child_stack=NULL, flags=SIGCHLD <unfinished ...>
12 1.210000 execve("/v/python", {AGENT}, 0x55 /* 94 vars */ <unfinished ...>
11 1.220000 <... clone resumed>, child_tidptr=0x7f) = 20 /* 12 in strace's PID NS */
12 1.230000 <... execve resumed>) = 0
12 1.300000 openat(AT_FDCWD, "/r/plan.json", O_RDONLY|O_CLOEXEC) = 3
12 1.400000 vfork() = 21 /* 13 in strace's PID NS */
13 1.410000 execve("/v/python", {SERVER}, 0x55 /* 94 vars */) = 0
13 1.420000 openat(AT_FDCWD, "/v/torch/glibc-hwcaps/libtorch_cpu.so", O_RDONLY|O_CLOEXEC) = -1 ENOENT (No such file)
13 1.500000 {TORCH}
13 1.600000 clone(child_stack=NULL, flags=SIGCHLD) = 22 /* 14 in strace's PID NS */
14 1.700000 openat(AT_FDCWD, "/r/train.py", O_RDONLY|O_CLOEXEC) = 4
14 1.800000 newfstatat(AT_FDCWD, "/s/mark-first-line", {NO_FILE}
14 1.900000 newfstatat(AT_FDCWD, "/s/mark-stepped",  <unfinished ...>
14 1.910000 <... newfstatat resumed>{NO_FILE}
14 5.000000 newfstatat(AT_FDCWD, "/s/mark-raises", {NO_FILE}
14 5.100000 openat(AT_FDCWD, "/r/error.json", O_WRONLY|O_CREAT, 0600) = 4
14 5.200000 exit_group(1) = ?
14 5.210000 +++ exited with 1 +++
12 5.300000 openat(AT_FDCWD, "/r/error.json", O_RDONLY|O_CLOEXEC) = 3
12 5.301000 openat(AT_FDCWD</r>, "/proc/14/stat", O_RDONLY|O_CLOEXEC) = 5</proc/14/stat>
12 5.302000 newfstatat(5</proc/14/stat>, "", {{st_mode=S_IFREG|0444, ...}}, AT_EMPTY_PATH) = 0
12 5.303000 newfstatat(5</r/process>, "", {{st_mode=S_IFREG|0444, ...}}, AT_EMPTY_PATH) = 0
11 5.310000 stat("/proc/x", 0x7f) = 0
13 5.400000 clone(child_stack=NULL, flags=SIGCHLD) = 23 /* 15 in strace's PID NS */
15 5.410000 clone(child_stack=NULL, flags=SIGCHLD) = 24 /* 16 in strace's PID NS */
15 5.420000 exit_group(0) = ?
16 5.500000 chdir("/r") = 0
16 5.600000 newfstatat(AT_FDCWD, "/s/mark-first-line", {NO_FILE}
16 5.700000 openat(AT_FDCWD, "/r/data.csv", O_RDONLY|O_CLOEXEC) = 4
16 5.800000 newfstatat(AT_FDCWD, "/s/mark-stepped", {NO_FILE}
16 5.900000 newfstatat(AT_FDCWD, "/s/stop", {NO_FILE}
"""
COLD = f"""\
30 1.000000 execve("/v/bin/torchrun", ["/v/bin/torchrun", "--nnodes=4", "/b/training.py"], 0x55 /* 9 vars */) = 0
30 1.100000 {TORCH}
30 1.200000 vfork() = 31 /* 31 in strace's PID NS */
31 1.300000 execve("/v/bin/python", ["/v/bin/python", "-u", "/b/training.py"], 0x55 /* 9 vars */) = 0
31 1.350000 openat(AT_FDCWD, "/b/training.py", O_RDONLY) = 3
31 1.400000 newfstatat(AT_FDCWD, "/s/mark-first-line", {NO_FILE}
31 1.500000 {TORCH}
31 1.600000 newfstatat(AT_FDCWD, "/s/mark-stepped", {NO_FILE}
"""


def test_a_call_written_in_two_parts_is_one() -> None:
    calls = [call for call in parse(WARM.splitlines()) if call.name == "newfstatat" and 1.8 < call.at < 2]
    assert [call.is_new for call in calls] == [True, False]
    assert Trace(WARM.splitlines()).file_calls_to_first_step().in_script == 2


def test_ends_and_signals_are_no_calls() -> None:
    assert list(parse(["14 5.210000 +++ exited with 1 +++", "14 5.2 --- SIGCHLD {si_signo=SIGCHLD} ---", ""])) == []


def test_a_fork_of_what_has_imported_torch_is_no_import() -> None:
    assert Trace(WARM.splitlines()).imports_of_torch() == {"fork server": 1}


def test_every_program_that_imports_torch_is_counted() -> None:
    assert Trace(COLD.splitlines()).imports_of_torch() == {"agent": 1, "worker": 1}


def test_a_restart_is_counted_by_who_made_the_calls() -> None:
    trace = Trace(WARM.splitlines())
    fault = trace.fault()
    assert fault == 5.0
    restart = trace.file_calls_of_restart(fault)
    # The worker that ends writes its error; the new one changes its directory before the script begins.
    assert restart.outside == {"worker": 2, "agent": 4, OTHERS: 1}
    assert (restart.total_outside, restart.on_proc) == (6, 2)
    assert restart.in_script == 3


def test_a_cold_start_is_counted_from_the_beginning() -> None:
    found = Trace(COLD.splitlines()).file_calls_to_first_step()
    assert found.outside == {"agent": 2, "worker": 2}
    assert found.in_script == 3


def test_a_node_without_a_fault_has_none() -> None:
    assert Trace(COLD.splitlines()).fault() is None
