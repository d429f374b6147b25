"""The faults with what must be said of each, written down before the rules that classify failures.

Where an expectation turned out wrong about what really happens, its correction is a commit of its own that says so;
no expectation follows what the classifier says.
"""

from __future__ import annotations

from typing import Any

from tests.faults.fault import Ended, Fault, Silent

Culprit = int | tuple[int, ...] | str | Silent | None
ANY_OF_4 = (0, 1, 2, 3)
_FAULTS: list[Fault] = []


def _fault(
    name: str, what: str, classes: str, culprit: Culprit, cause: str, *, before: tuple[Ended, ...] = (), **options: Any
) -> None:
    end = Ended(tuple(classes.split()), culprit, cause)
    _FAULTS.append(Fault(name=name, what=what, end=end, before=before, **options))


# Exceptions. Each script raises in one rank while the others wait, unless it says otherwise.
_fault("raises", "a ValueError in the main function", "exception", 2, "ValueError: bad batch 17", is_quick=True)
_fault("raises_in_library", "json.loads of half a file", "exception", 1, "JSONDecodeError: Expecting")
_fault(
    "raises_forked",
    "a ValueError in a forked worker",
    "exception",
    3,
    "ValueError: bad batch 17",
    job={"start": "fork"},
)
_fault(
    "thread_noticed",
    "a thread dies of KeyError, and the main thread exits with 1",
    "exit_code",
    1,
    "exit code 1|KeyError",
)
_fault("thread_ignored", "a thread dies of KeyError, and nobody cares", "", None, "", exit_code=0)
_fault("raises_in_finally", "an error in finally replaces another one", "exception", 2, "RuntimeError: cannot close it")
_fault("raises_in_atexit", "an exception in atexit, which Python ignores", "", None, "", exit_code=0)
_fault("raises_in_del", "an exception in __del__, which Python ignores", "", None, "", exit_code=0)
_fault("chained", "an exception raised from another one", "exception", 1, "StepError: step 12 went wrong")
_fault("exception_group", "an ExceptionGroup of two", "exception", 3, "ExceptionGroup: .*2 of them")
_fault("task_group", "an exception in an asyncio TaskGroup", "exception", 0, "ExceptionGroup|ConnectionError")
_fault("str_raises", "an exception whose __str__ raises", "exception", 1, "StepError")
_fault("unpicklable", "an exception that holds a lock", "exception", 2, "StepError: held")
_fault("bare_assert", "an assert without a message", "exception", 1, "AssertionError")
_fault("huge_message", "a message of 10 MB", "exception", 2, "^.{0,3000}$(?s:.*)")
_fault("control_characters", "ESC and NUL in the message", "exception", 1, "ValueError: .*red")
_fault("surrogate", "a lone surrogate in the message", "exception", 3, "ValueError: bad name")
_fault(
    "recorded_surrogate",
    "a lone surrogate in the message, with torch's @record",
    "exception",
    2,
    "ValueError: bad name",
)
_fault("newlines_first", "a message that begins with empty lines", "exception", 1, "RuntimeError:? .*it broke")
_fault("base_exception", "an exception that is no Exception", "exception", 2, "Halt: now")
_fault(
    "stop_iteration",
    "StopIteration that leaves a generator",
    "exception",
    1,
    "RuntimeError: generator raised StopIteration",
)
_fault("recursion", "a recursion without an end", "exception", 2, "RecursionError")
_fault("syntax_error", "a script that is no Python", "exception start_failed", ANY_OF_4, "SyntaxError")
_fault(
    "syntax_error_imported",
    "a module that is no Python",
    "exception import_error",
    ANY_OF_4,
    "SyntaxError",
    files={"model.py": "def forward(:\n"},
)
_fault("excepthook", "a ValueError where the script has its own excepthook", "exception", 1, "ValueError: bad batch 17")
_fault(
    "streams_closed", "an exception after standard output and error were closed", "exception", 2, "RuntimeError: dark"
)
_fault("stdout_closed", "print to a closed descriptor", "exception", 1, "OSError|Bad file descriptor")
_fault(
    "handler_raises",
    "another rank's TERM handler raises while it is stopped",
    "exception",
    2,
    "ValueError: bad batch 17",
)
_fault("timeout_error", "a TimeoutError of the user's own download", "exception", 1, "TimeoutError: download")
_fault("refused", "a service of the user's own that refuses the connection", "exception", 3, "ConnectionRefusedError")
_fault(
    "misleading_message",
    "a ValueError that quotes another error's text",
    "exception",
    2,
    "ValueError: .*is not a number",
)
_fault(
    "misleading_output",
    "an old traceback in stderr, then KILL from outside",
    "signal",
    1,
    "SIGKILL",
    act=("kill", "1", "KILL"),
)
_fault(
    "child_raises",
    "a process of multiprocessing.spawn fails",
    "exception",
    1,
    "ProcessRaisedException|ZeroDivisionError",
)
_fault("recorded", "torch's @record", "exception", 2, "ValueError: bad batch 17")
_fault("recorded_child_ignored", "a child with @record fails, and its parent does not care", "", None, "", exit_code=0)
_fault(
    "recorded_child",
    "a child with @record fails, and then its parent with its own error",
    "exception",
    1,
    "RuntimeError: no data",
)
_fault("no_files", "too many open files", "exception", 2, "Too many open files")
_fault("file_too_large", "a file beyond RLIMIT_FSIZE", "exception", 1, "File too large")

# Imports.
_fault(
    "import_one_node",
    "a package that one node does not have",
    "import_error",
    (2, 3),
    "No module named '?tokens",
    files={"site-local0/tokens.py": "", "site-local1/other.py": ""},
    is_quick=True,
)
_fault("import_all", "a package that is nowhere", "import_error", ANY_OF_4, "No module named '?tokens")
_fault("import_name", "a name that a module does not have", "import_error", 1, "cannot import name")
_fault("import_extension", "an extension module that was cut short", "import_error", 2, "ImportError|file too short")
_fault(
    "import_library", "a shared library that is missing", "import_error", 3, "libdata.so.7: cannot open shared object"
)

# Exit codes.
_fault("exits_3", "sys.exit(3)", "exit_code", 1, "exit code 3")
_fault("exits_text", "sys.exit with a text", "exit_code", 2, "no data in /data/train")
_fault("exits_two_lines", "sys.exit with a text of two lines", "exit_code", 1, "config is wrong")
_fault("exits_negative", "sys.exit(-1)", "exit_code", 2, "exit code 255")
_fault("os_exit", "os._exit(7)", "exit_code", 3, "exit code 7")
_fault("execs", "a rank that becomes another program, which exits with 6", "exit_code", 1, "exit code 6")
_fault("usage", "argparse misses an option", "exit_code", 2, "required: --data|exit code 2")
_fault("interrupt_self", "SIGINT to itself", "signal exception", 1, "SIGINT|KeyboardInterrupt")
_fault("interrupt_by_thread", "_thread.interrupt_main", "signal exception", 2, "SIGINT|KeyboardInterrupt")

# Signals and native code.
for _name, _rank in (("KILL", 1), ("TERM", 2), ("USR1", 3), ("HUP", 0)):
    _fault(
        f"outside_{_name.lower()}",
        f"SIG{_name} from outside",
        "signal",
        _rank,
        f"SIG{_name}",
        script="waits",
        act=("kill", str(_rank), _name),
    )
_fault("kills_itself", "SIGKILL to itself", "signal", 2, "SIGKILL")
_fault(
    "real_time_signal", "a real-time signal from outside", "signal", 1, "SIG", script="waits", act=("kill", "1", "37")
)
_fault("alarm", "a forgotten alarm", "signal", 2, "SIGALRM")
_fault("cpu_limit", "RLIMIT_CPU", "signal", 1, "SIGXCPU")
_fault("illegal_instruction", "an instruction that this processor does not have", "signal", 2, "SIGILL")
_fault("segfault", "a null pointer in C", "segmentation_fault", 1, "SIGSEGV|segmentation fault")
_fault("segfault_with_stack", "the same with faulthandler on", "segmentation_fault", 2, "SIGSEGV|segmentation fault")
_fault("aborts", "os.abort", "aborted", 3, "SIGABRT|abort")
_fault("cpp_exception", "a C++ exception that nothing caught", "aborted", 1, "SIGABRT|abort|terminate called")
_fault("fatal_error", "Python's own Py_FatalError", "aborted", 2, "SIGABRT|abort|Fatal Python error")
_fault("truncated_mmap", "a mapped file that was truncated", "bus_error", 1, "SIGBUS|bus error")

# Memory.
_fault(
    "oom_worker",
    "one worker alone in a memory cgroup",
    "out_of_memory",
    1,
    "(?i)memory",
    act=("confine_rank", "1", "64M"),
    script="eats_when_told",
    is_quick=True,
)
_fault(
    "oom_node",
    "a node in a memory cgroup, one of its workers grows",
    "out_of_memory",
    2,
    "(?i)memory",
    around=("memory", "400M"),
    act=("go",),
    script="eats_when_told_2",
)
_fault(
    "oom_loader",
    "the kernel kills a data loader's process",
    "out_of_memory",
    3,
    "(?i)memory",
    around=("memory", "1500M"),
    script="loader_eats",
)
_fault("memory_limit", "MemoryError by RLIMIT_AS", "exception", 1, "MemoryError")
_fault("torch_allocator", "torch.empty of a petabyte", "exception", 2, "can't allocate memory|not enough memory")

# Disks.
_fault(
    "disk_full",
    "a write to a full tmpfs",
    "disk_full",
    1,
    "No space left",
    around=("tmpfs", "data", "1M"),
)
_fault(
    "disk_full_torch",
    "torch.save to a full tmpfs",
    "disk_full",
    2,
    "(?i)space|full|write|unexpected pos",
    around=("tmpfs", "data", "1M"),
)
_fault("quota", "EDQUOT", "disk_full", 3, "(?i)quota")
_fault(
    "shm_full",
    "touching shared memory beyond a small /dev/shm",
    "shared_memory_full",
    1,
    "(?i)shared memory|/dev/shm|SIGBUS",
    around=("tmpfs", "/dev/shm", "4M"),
)
_fault(
    "shm_full_loader",
    "a data loader in a small /dev/shm",
    "shared_memory_full",
    2,
    "(?i)shared memory|/dev/shm|bus error",
    around=("tmpfs", "/dev/shm", "4M"),
)
_fault("read_only", "a read-only file system", "file_system", 1, "Read-only file system", around=("read_only", "data"))
_fault("missing_file", "a file that is not there", "exception", 2, "FileNotFoundError|No such file")
_fault("permission", "a program that may not be executed", "exception", 3, "PermissionError|Permission denied")
_fault("stale", "ESTALE", "file_system", 1, "Stale file handle")
_fault("io_error", "EIO from a real file", "file_system", 2, "Input/output error")
_fault("gone_mount", "ENOTCONN, as of a FUSE mount that died", "file_system", 1, "Transport endpoint is not connected")
_fault("evicted_client", "ESHUTDOWN, as of an evicted Lustre client", "file_system", 3, "transport endpoint shutdown")
_fault("corrupt_checkpoint", "torch.load of half a checkpoint", "exception", 0, "(?i)PytorchStreamReader|zip|Error: ")
_fault(
    "other_model", "a checkpoint of another model", "exception", ANY_OF_4, "size mismatch|Error.* in loading state_dict"
)

# Starts.
_fault(
    "wrong_interpreter",
    "a Python that is gone when the agents start",
    "",
    None,
    "(?i)missing|no such file|not found|127",
    exit_code=3,
    script="waits",
    job={"python": "./python.sh", "setup": ["rm -f python.sh"]},
)
_fault(
    "exec_format",
    "a program of another format",
    "start_failed",
    ANY_OF_4,
    "(?i)exec format|neither a binary of this machine",
    job={"entrypoint": {"command": "./prog.sh"}},
    files={"prog.sh": "\x01\x02 no program\n"},
    script="waits",
)
_fault(
    "missing_script",
    "a script that is gone when the agents start",
    "",
    None,
    "(?i)is not a file|no such file|can't open file|not found",
    exit_code=3,
    script="waits",
    job={"setup": ["rm -f job.py"]},
)
_fault(
    "missing_command",
    "a program that is gone when the workers start",
    "start_failed",
    ANY_OF_4,
    "(?i)no such file|not found",
    script="waits",
    job={"entrypoint": {"command": "./prog.sh"}, "setup": ["rm -f prog.sh"]},
    files={"prog.sh": "#!/bin/bash\nexit 0\n"},
)
_fault(
    "not_executable",
    "a program without its x bit",
    "start_failed",
    ANY_OF_4,
    "(?i)permission denied|not executable",
    script="waits",
    job={"entrypoint": {"command": "./prog.sh"}, "setup": ["chmod -x prog.sh"]},
    files={"prog.sh": "#!/bin/bash\nexit 0\n"},
)
_fault(
    "bash_fails",
    "a bash script whose command fails",
    "exit_code",
    ANY_OF_4,
    "cannot access|exit code 2",
    script="waits",
    job={"entrypoint": {"command": "./prog.sh"}},
    files={"prog.sh": "#!/bin/bash\nset -e\nls /data/nowhere\n"},
)
_fault(
    "bash_exits",
    "a bash script that says nothing",
    "exit_code",
    1,
    "exit code 5",
    script="waits",
    job={"entrypoint": {"command": "./prog.sh"}},
    files={"prog.sh": '#!/bin/bash\nif [ "$RANK" = 1 ]; then exit 5; fi\nexec sleep 600\n'},
)
_fault(
    "bash_python_raises",
    "a bash script around a Python that raises",
    "exit_code exception",
    2,
    "ValueError: bad batch 17",
    script="raises",
    job={"entrypoint": {"command": "./prog.sh"}},
    files={"prog.sh": "#!/bin/bash\nset -e\npython3 job.py\necho done\n"},
)
_fault(
    "bash_child_killed",
    "a bash script whose child is killed",
    "exit_code signal",
    3,
    "137|SIGKILL|Killed",
    script="waits",
    job={"entrypoint": {"command": "./prog.sh"}},
    files={"prog.sh": "#!/bin/bash\nif [ \"$RANK\" = 3 ]; then bash -c 'kill -KILL $$'; exit $?; fi\nexec sleep 600\n"},
)
_fault(
    "bash_child_segfault",
    "a bash script whose child has a segmentation fault",
    "exit_code segmentation_fault",
    1,
    "139|[Ss]egmentation fault",
    script="waits",
    job={"entrypoint": {"command": "./prog.sh"}},
    files={"prog.sh": "#!/bin/bash\nif [ \"$RANK\" = 1 ]; then bash -c 'kill -SEGV $$'; exit $?; fi\nexec sleep 600\n"},
)
_fault(
    "module_missing",
    "`python -m` of a module that is missing",
    "import_error start_failed exit_code exception",
    ANY_OF_4,
    "No module named '?tokens",
    script="waits",
    job={"entrypoint": {"module": "tokens.train"}},
)
_fault(
    "setup_fails",
    "a setup line that fails",
    "",
    None,
    "setup|exit",
    exit_code=3,
    script="waits",
    job={"setup": ["false"]},
)

# Collectives on gloo.
for _name, _rank in (("KILL", 2), ("SEGV", 1)):
    _fault(
        f"collective_{_name.lower()}",
        f"SIG{_name} from outside to a rank in a collective",
        "signal" if _name == "KILL" else "signal segmentation_fault",
        _rank,
        f"SIG{_name}|segmentation",
        script="trains",
        act=("kill", str(_rank), _name),
    )
_fault(
    "collective_raises", "an exception while the others are in a collective", "exception", 3, "ValueError: bad batch 17"
)
_fault(
    "finally_raises",
    "the same inside try/finally: destroy_process_group()",
    "exception",
    1,
    "ValueError: bad batch 17",
)
_fault("finally_exits", "sys.exit(3) inside try/finally: destroy_process_group()", "exit_code", 2, "exit code 3")
_fault(
    "finally_slow",
    "the same as finally_raises, and a second of other work in finally",
    "exception",
    2,
    "ValueError: bad batch 17",
)
_fault("collective_os_exit", "rank 0 calls os._exit in a collective", "exit_code", 0, "exit code 1")
_fault(
    "ddp_raises", "an exception in the forward of DistributedDataParallel", "exception", 1, "ValueError: bad batch 17"
)
_fault(
    "ddp_shapes", "another rank's model has another shape", "exception", ANY_OF_4, "(?i)shape|size|param|verify|Error"
)
_fault(
    "victim_wraps",
    "a victim raises its own error from the broken connection",
    "signal",
    1,
    "SIGKILL",
    act=("kill", "1", "KILL"),
)
_fault(
    "victim_exits",
    "a victim logs the broken connection and calls sys.exit(1)",
    "exception",
    1,
    "ValueError: bad batch 17",
)
_fault("victim_aborts", "a victim aborts, as NCCL's watchdog does", "exit_code", 3, "exit code 4")
_fault("skips", "one rank skips a collective", "silent collective_timeout", Silent(2), "2")
_fault("deadlock", "each rank waits for another one", "collective_timeout", ANY_OF_4, "(?i)time")
_fault("skips_barrier", "one rank skips a monitored barrier", "silent collective_timeout", Silent(2), "2")
_fault("shapes", "another shape in all_reduce", "exception aborted collective_timeout peer_lost", ANY_OF_4, "rank")
_fault("early_exit", "one rank exits 0 while the others wait for it", "peer_lost silent", (0, 1, 2, 3), "1|peer")
_fault(
    "frozen_rank",
    "SIGSTOP to a rank in a collective",
    "silent collective_timeout",
    Silent(1),
    "1",
    script="trains_short",
    act=("kill", "1", "STOP"),
)
_fault("holds_gil", "a rank in C that keeps the GIL", "silent collective_timeout", Silent(2), "2")
_fault("spins", "a rank in a loop without an end", "silent collective_timeout", Silent(1), "1")
_fault(
    "wrong_interface",
    "GLOO_SOCKET_IFNAME names no interface",
    "rendezvous exception",
    ANY_OF_4,
    "nope0",
    script="trains",
    job={"env": {"GLOO_SOCKET_IFNAME": "nope0"}},
)
_fault(
    "never_joins",
    "one rank never calls init_process_group",
    "silent rendezvous collective_timeout",
    Silent(3),
    "(?i)3|time",
)
_fault(
    "flight_recorder",
    "one rank skips a collective, and torch's flight recorder is on",
    "silent collective_timeout",
    Silent(3),
    "(?i)3|time",
    job={"env": {"TORCH_FR_BUFFER_SIZE": "100", "TORCH_FR_DUMP_TEMP_FILE": "flight_recorder_"}},
)
_fault(
    "wrong_world_size",
    "world_size=8 with four ranks",
    "rendezvous collective_timeout",
    ANY_OF_4,
    "(?i)time|world|client|8",
)
_fault("port_in_use", "every rank binds the same port", "port_in_use", ANY_OF_4, "Address already in use")
_fault(
    "store_port_in_use",
    "init_process_group with a port that another process holds",
    "port_in_use",
    ANY_OF_4,
    "(?i)EADDRINUSE|in use|listen",
)
_fault("two_at_once", "two ranks raise the same at the same moment", "exception", (1, 3), "ValueError: bad batch 17")
_fault(
    "two_different",
    "one rank raises and another one exits at the same moment",
    "exception exit_code",
    (0, 2),
    "ValueError: bad batch 17|exit code 4",
)
_fault("all_ranks", "all ranks raise the same", "exception", ANY_OF_4, "FloatingPointError: loss is nan")
_fault(
    "many_ranks",
    "four nodes of two, all ranks but one raise the same",
    "exception",
    (0, 1, 2, 3, 4, 5, 6),
    "loss is nan",
    nodes=4,
    script="many_ranks",
)
_fault("alone", "one node with one worker raises", "exception", 0, "ValueError: bad batch 17", nodes=1, workers=1)
_fault(
    "alone_killed",
    "one node with one worker, killed",
    "signal",
    0,
    "SIGKILL",
    nodes=1,
    workers=1,
    script="waits",
    act=("kill", "0", "KILL"),
)

# Processes of a rank.
_fault("double_fork", "a rank leaves a daemon behind and raises", "exception", 1, "ValueError: bad batch 17")
_fault(
    "orphan",
    "a rank's child in a session of its own holds its output, and the rank raises",
    "exception",
    2,
    "ValueError: bad batch 17",
)
_fault("loader_raises", "an exception in a data loader's process", "exception", 1, "KeyError")
_fault(
    "loader_killed",
    "SIGKILL to a data loader's process",
    "exception signal",
    2,
    "(?i)DataLoader worker.*(kill|exited unexpectedly)|ConnectionResetError",
)
_fault("loader_exits", "a data loader's process calls os._exit", "exception", 1, "DataLoader worker")
_fault(
    "loader_segfault",
    "a segmentation fault in a data loader's process",
    "exception segmentation_fault",
    3,
    "(?i)DataLoader worker|segmentation|ConnectionResetError",
)

# GPUs: the texts and types that torch raises; there is no GPU here.
for _name, _class, _cause in (
    ("gpu_out_of_memory", "cuda_out_of_memory", "CUDA out of memory"),
    ("gpu_out_of_memory_plain", "cuda_out_of_memory", "out of memory"),
    ("gpu_ecc", "cuda_hardware", "uncorrectable ECC error"),
    ("gpu_nvlink", "cuda_hardware", "uncorrectable NVLink error"),
    ("gpu_illegal_access", "cuda_illegal_access", "illegal memory access"),
    ("gpu_assert", "cuda_illegal_access", "device-side assert"),
    ("gpu_none", "cuda_no_device", "No CUDA GPUs are available"),
    ("gpu_not_detected", "cuda_no_device", "no CUDA-capable device"),
    ("gpu_ordinal", "cuda_no_device", "invalid device ordinal"),
    ("gpu_launch_failure", "cuda_error cuda_illegal_access", "unspecified launch failure"),
    ("gpu_cublas", "cuda_error", "CUBLAS_STATUS_NOT_INITIALIZED"),
    ("gpu_cudnn", "cuda_error", "CUDNN_STATUS_INTERNAL_ERROR"),
    ("nccl_cuda", "cuda_error", "ncclUnhandledCudaError|unhandled cuda error|Call to CUDA"),
):
    _fault(_name, f"torch's {_cause.split('|')[0]}", _class, 1, _cause)
_fault("nccl_remote", "a rank kills itself, and NCCL tells the others of a lost peer", "signal", 2, "SIGKILL")
_fault(
    "nccl_remote_alone",
    "NCCL tells of a lost peer, and nobody has failed",
    "peer_lost",
    1,
    "(?i)NCCL|remote|network|peer",
)
_fault(
    "nccl_watchdog",
    "NCCL's watchdog aborts all ranks but the one that did not come",
    "silent collective_timeout",
    Silent(2),
    "(?i)2|time",
)

# Nodes, agents, and what stops a run from outside.
_LOST = "agent_lost node_lost"
_fault(
    "agent_killed",
    "SIGKILL to an agent",
    _LOST,
    "local1",
    "local1",
    exit_code=7,
    script="waits",
    act=("agent", "local1", "KILL"),
)
_fault(
    "head_killed",
    "SIGKILL to the head",
    _LOST,
    "local0",
    "local0",
    exit_code=7,
    script="waits",
    act=("agent", "local0", "KILL"),
)
_fault(
    "agent_killed_survived",
    "SIGKILL to an agent that the run can do without",
    "",
    None,
    "",
    exit_code=0,
    script="ends_at_restart",
    before=(Ended(("agent_lost", "node_lost"), "local1", "local1"),),
    job={"nodes": {"min": 1, "max": 2}},
    act=("agent", "local1", "KILL"),
)
_fault(
    "agent_frozen",
    "SIGSTOP to an agent",
    _LOST,
    "local1",
    "local1",
    exit_code=7,
    script="waits",
    act=("agent", "local1", "STOP"),
)
_fault(
    "head_frozen",
    "SIGSTOP to the head",
    _LOST,
    "local0",
    "local0",
    exit_code=7,
    script="waits",
    act=("agent", "local0", "STOP"),
)
_fault(
    "node_gone",
    "everything on a node is killed at once",
    _LOST,
    "local1",
    "local1",
    exit_code=7,
    script="waits",
    act=("node", "local1", "KILL"),
)
_fault(
    "node_frozen",
    "everything on a node stands still",
    _LOST,
    "local1",
    "local1",
    exit_code=7,
    script="waits",
    act=("node", "local1", "STOP"),
)
_fault(
    "node_gone_collective",
    "a node is gone while its ranks are in a collective",
    _LOST,
    "local1",
    "local1",
    exit_code=7,
    script="trains",
    act=("node", "local1", "KILL"),
)
_fault(
    "cable_cut",
    "no packet reaches a node any more",
    "node_lost agent_lost",
    "local1",
    "local1",
    exit_code=7,
    script="waits",
    around=("network",),
    act=("cut", "local0", "local1"),
)
_fault(
    "guard_killed",
    "SIGKILL to a guard, which is started again",
    "",
    None,
    "",
    exit_code=0,
    script="ends_when_told",
    act=("guard", "local1", "KILL"),
)
_fault(
    "store_killed",
    "SIGKILL to the process of the store",
    "agent_lost peer_lost signal",
    "local0",
    "store",
    script="waits",
    act=("store", "local0", "KILL"),
    job={"start": "fork"},
)
_fault(
    "agents_killed",
    "SIGKILL to all agents",
    "agent_lost node_lost",
    None,
    "SIGKILL|agents?",
    exit_code=7,
    script="waits",
    act=("agents", "KILL"),
)
_fault(
    "cancelled",
    "hpc-elastic cancel",
    "cancelled",
    None,
    "cancelled by",
    exit_code=10,
    script="waits",
    act=("cancel",),
)
_fault(
    "agent_terminated",
    "TERM to an agent, as of scancel or preemption",
    "cancelled preempted",
    None,
    "TERM",
    exit_code=10,
    script="waits",
    act=("agent", "local1", "TERM"),
)
_fault(
    "all_terminated",
    "TERM to every process of the job at once",
    "cancelled preempted",
    None,
    "TERM",
    exit_code=10,
    script="waits",
    act=("everything", "TERM"),
)
_fault(
    "script_terminated",
    "TERM to the script",
    "cancelled preempted",
    None,
    "TERM|cancel",
    exit_code=10,
    script="waits",
    act=("script", "TERM"),
)
_fault(
    "time_limit",
    "the time limit",
    "time_limit",
    None,
    "(?i)^(?!.*scancel).*time limit",
    exit_code=7,
    script="waits",
    job={"time": "16s", "signals": {"grace": "4s", "restart_grace": "1s"}},  # as agents need on a busy machine
)
_fault(
    "exit_timeout",
    "one rank exits 0, and the others do not within exit_timeout",
    "silent stalled",
    (1, 2, 3),
    "exit_timeout|ranks? 1",
    exit_code=9,
    job={"elastic": {"exit_timeout": "1s"}},
)
_fault(
    "unkillable",
    "a rank that KILL cannot end, in a frozen cgroup, after another one raised",
    "unkillable",
    "local1",
    "survived KILL|unkillable|could not be killed",
    exit_code=9,
    restarts=1,
    act=("freeze_rank", "3"),
    script="raises_when_told",
)

# Stalls: they need heartbeats.
_fault(
    "stall_frozen",
    "SIGSTOP to a rank that sends heartbeats",
    "stalled",
    2,
    "2",
    exit_code=(1, 9),
    script="beats",
    act=("kill", "2", "STOP"),
    job={"stall_timeout": "2s"},
    needs=("heartbeat",),
)
_fault(
    "stall_gil",
    "a rank that keeps the GIL and sends no heartbeat",
    "stalled",
    1,
    "1",
    exit_code=(1, 9),
    job={"stall_timeout": "2s"},
    needs=("heartbeat",),
)
_fault(
    "stall_collective",
    "one rank stops, and the others wait for it in a collective",
    "stalled",
    3,
    "3",
    exit_code=(1, 9),
    job={"stall_timeout": "2s"},
    needs=("heartbeat",),
)

_fault(
    "quotes_traceback",
    "a RuntimeError whose message quotes another program's traceback",
    "exception",
    2,
    "evaluation failed",
)

_fault(
    "slow_wrapper",
    "a bash script tidies up for 2 s after its Python raised, and the stop ends it",
    "exception exit_code",
    2,
    "bad batch 17",
    job={"entrypoint": {"command": "./p.sh"}},
    files={"p.sh": "#!/bin/bash\npython3 job.py\nrc=$?\n[ $RANK = 2 ] && sleep 2\nexit $rc\n"},
)

_fault(
    "victims_say_more",
    "every rank logs its exception, exits with 1, and atexit prints 8 lines more",
    "exception",
    2,
    "bad batch 17",
)

_fault(
    "wrapper_says_more",
    "a bash script says 6 lines after its Python raised",
    "exception exit_code",
    2,
    "bad batch 17",
    job={"entrypoint": {"command": "./p.sh"}},
    files={"p.sh": "#!/bin/bash\npython3 job.py\nrc=$?\nseq -f 'cleanup: step %g' 6 >&2\nexit $rc\n"},
)

_fault(
    "boxed_traceback",
    "a bash script gives a code of its own after its Python raised, whose traceback rich draws in a box",
    "exception exit_code",
    2,
    "bad batch 17",
    job={"entrypoint": {"command": "./p.sh"}},
    files={"p.sh": "#!/bin/bash\npython3 job.py || { echo 'job failed' >&2; exit 3; }\n"},
)

_fault(
    "slow_wrapper_segfault",
    "a bash script needs 5 s more to end after a segmentation fault of its Python, and the stop ends it",
    "segmentation_fault signal exit_code",
    2,
    "SIGSEGV|139|[Ss]egmentation",
    job={"entrypoint": {"command": "./p.sh"}},
    files={"p.sh": "#!/bin/bash\npython3 job.py\nrc=$?\n[ $RANK = 2 ] && sleep 5\nexit $rc\n"},
)

_fault(
    "work_times_out", "ranks wait for a collective's work with a timeout of their own", "silent", Silent(2), "rank 2"
)
_fault(
    "handler_prints_os_exit",
    "a handler in every rank prints the traceback and leaves with a code of its own",
    "exit_code exception",
    2,
    "^rank 2 [^;]*$",
)
_fault(
    "handler_logs_os_exit",
    "a handler in every rank logs one line and leaves",
    "exit_code exception",
    2,
    "^rank 2 [^;]*bad batch 17[^;]*$",
)
_fault(
    "one_step_less",
    "one rank has a step less than the others, and waits in a barrier",
    "collective_timeout",
    ANY_OF_4,
    "rank 1 at|rank 1$",
    job={"restart": {"max_restarts": 0}},
)
_fault(
    "json_log",
    "a logger writes the traceback as a line of JSON, in a command",
    "exception",
    2,
    "ValueError: bad batch 17",
    job={"entrypoint": {"command": "./p.sh"}},
    files={"p.sh": "#!/bin/bash\npython3 job.py\n"},
)
_fault(
    "tee",
    "a command joins the streams and pipes them to tee",
    "exception",
    2,
    "ValueError: bad batch 17",
    script="raises",
    job={"entrypoint": {"command": "./p.sh"}},
    files={"p.sh": "#!/bin/bash\nset -o pipefail\npython3 job.py 2>&1 | tee log-$RANK.txt\n"},
)
_fault(
    "own_watchdog",
    "a watchdog of the script gives up in all ranks but the one that sleeps",
    "exit_code",
    (0, 1, 3),
    "rank 2 had not failed",
)
_fault(
    "store_key_missing",
    "one rank waits for a key of the store that nobody writes",
    "rendezvous collective_timeout exception",
    1,
    "rank 1",
)

_fault(
    "falls_back",
    "the handler of a full disk goes on with the work, which raises something else",
    "exception",
    1,
    "^[^;]*bad batch 17",
)

_fault(
    "next_port",
    "the handler of a port in use tries the next one, and the work raises later",
    "exception",
    1,
    "^[^;]*bad batch 17",
)

_fault(
    "exits_after_log",
    "a handled exception is printed, and sys.exit gives a text",
    "exit_code",
    1,
    "no data left",
)

_fault(
    "wrapper_checks",
    "a Python script runs its Python by subprocess.run(check=True), and that raises",
    "exception",
    2,
    "bad batch 17",
)

_fault(
    "import_subclass",
    "a subclass of ImportError under another name",
    "exception",
    1,
    "FlashError",
)

_fault(
    "handlers_exit",
    "every rank logs its exception, leaves its group, and exits with 5",
    "exit_code exception",
    2,
    "exit code 5|bad batch",
)

_fault(
    "one_beats",
    "only rank 0 beats, and a rank of the other node hangs",
    "silent stalled collective_timeout",
    Silent(2),
    "rank 2",
    job={"stall_timeout": "2s"},
    exit_code=(1, 9),
)

_fault(
    "dumps_later",
    "faulthandler.dump_traceback_later ends the process",
    "exit_code",
    1,
    "(?i)timeout",
)

_fault(
    "message_context",
    "a message that quotes a chain of exceptions",
    "exception",
    1,
    "^.*bad batch 17",
)

_fault(
    "wrapper_reports",
    "the script that ran the Python that raised needs 10 s more to end",
    "exception",
    2,
    "",
)

_fault(
    "wrapped_kill",
    "a launch script passes on that its Python was killed",
    "exit_code signal",
    2,
    "SIGKILL|exit code 247$",
)

_fault(
    "loader_reads",
    "a data set raises RuntimeError of a read error in a data loader's process",
    "exception",
    2,
    "Read error in shard 12",
)

_fault(
    "loader_waits",
    "a data set raises RuntimeError of a read timeout in a data loader's process",
    "exception",
    2,
    "Read timeout",
)

_fault(
    "settings_import",
    "a settings module that only one rank asks for is missing",
    "import_error",
    2,
    "settings",
    files={"settings/base.py": ""},
)
_fault(
    "group_order",
    "one rank makes its process groups in another order",
    "collective_timeout rendezvous exception peer_lost",
    ANY_OF_4,
    "(?i)tim|rank",
)
_fault(
    "retry_loop",
    "a file is tried three times, with a printed traceback each time, and then given up",
    "exception",
    2,
    "gave up on shard-17 after 3 tries",
)
_fault("pool_broken", "a process of a ProcessPoolExecutor leaves", "exception", 1, "BrokenProcessPool")
_fault("usr1_raises", "a handler of USR1 raises within a collective", "exception", 2, "asked to leave by USR1")
_fault("asks_user", "a script that asks the user, without a terminal", "exception", ANY_OF_4, "EOFError")
_fault(
    "logs_peer_last",
    "a rank raises, logs it, and last logs that its clean end failed at a peer",
    "exception exit_code",
    2,
    "bad batch 17|exit code 1",
)
_fault(
    "child_traceback",
    "a traceback of a forked child, and long after it a SIGKILL of the rank",
    "signal",
    3,
    "^[^;]*killed by SIGKILL",
)
_fault("nan_stdout", "a rank prints that the loss is nan, and exits with 1", "exit_code", 2, "exit code 1")
_fault("no_threads", "no thread can be started", "exception", 1, "can't start new thread")
_fault(
    "prints_and_exits",
    "a launcher of configurations prints the traceback and exits with 1",
    "exception",
    2,
    "ValueError: bad batch 17",
)
_fault(
    "nested_launcher",
    "torchrun is the command of each node, and one of its ranks raises",
    "exception exit_code",
    1,
    "bad batch 17",
    job={"entrypoint": {"command": "./p.sh"}},
    files={"p.sh": "#!/bin/bash\nexec torchrun --standalone --nproc-per-node 2 job.py\n"},
    workers=1,
)
_fault(
    "project_named_torch",
    "the project is in a folder torch/distributed",
    "exception",
    2,
    "ValueError: bad batch 17",
    job={"entrypoint": {"script": "torch/distributed/train.py"}},
    files={"torch/distributed/train.py": "import sys\nsys.path.insert(0, '.')\nimport job\n"},
    script="raises",
)

# Several attempts.
_SAME = Ended(("exception",), 1, "ValueError: bad batch 17")
_fault(
    "same_each_time",
    "the same failure until max_restarts is used up",
    "exception",
    1,
    "ValueError: bad batch 17",
    before=(_SAME, _SAME),
    restarts=2,
    script="raises_1",
)
_fault(
    "another_each_time",
    "another failure in each attempt",
    "exit_code",
    3,
    "exit code 4",
    restarts=2,
    before=(_SAME, Ended(("signal",), 2, "SIGKILL")),
)
_fault(
    "no_progress",
    "the same failure without progress",
    "exception",
    2,
    "ValueError: bad batch 17",
    restarts=9,
    exit_code=8,
    before=(Ended(("exception",), 2, "ValueError"),) * 2,
    job={"progress": {"file": "saved-*"}},
    script="raises",
)
_fault("recovers", "one failure, and then all is well", "", None, "", exit_code=0, restarts=3, before=(_SAME,))
_fault(
    "finally_each_time",
    "an exception inside try/finally: destroy_process_group(), of another rank each time",
    "exception",
    3,
    "ValueError: bad batch 17",
    restarts=3,
    before=tuple(Ended(("exception",), rank, "ValueError: bad batch 17") for rank in (0, 1, 2)),
)

FAULTS = tuple(_FAULTS)
