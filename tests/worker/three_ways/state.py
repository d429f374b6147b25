"""Notes all that a process can see of itself, for the comparison of the three ways to start it.

It must not change what it looks at: it imports what a fresh interpreter needs for the look, no more.
"""

import builtins
import ctypes
import gc
import json
import locale
import os
import resource
import signal
import sys
import threading
import time
import warnings

# A worker has Python's fault handler for these, which plain Python has only if it is asked for.
FATAL = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
# Lines of /proc/self/status that two processes of the same kind have in common.
STATUS = (
    *("Name", "Umask", "TracerPid", "Uid", "Gid", "Groups", "Kthread", "Threads", "SigPnd", "ShdPnd", "SigBlk"),
    *("SigIgn", "SigCgt", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "CoreDumping"),
    *("Cpus_allowed", "Mems_allowed"),
)
PRCTL = {"death_signal": 2, "dumpable": 3, "keep_capabilities": 7, "name": 16, "timer_slack": 30, "subreaper": 37}


def note(what: str) -> None:
    """Adds a line to the file `states` of the working directory that the process started with."""
    line = json.dumps({"at": what, **look()}, sort_keys=True)
    descriptor = os.open(_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.write(descriptor, line.encode() + b"\n")
    os.close(descriptor)


def look() -> dict:
    return {**_kernel(), **_environment(), **_interpreter(), **_files(), **_main_module()}


def _kernel() -> dict:
    me = os.getpid()
    return {
        "cmdline": _read("cmdline").split("\0"),
        "comm": _read("comm"),
        "executable": os.readlink("/proc/self/exe"),
        "status": {line.partition(":")[0]: line.partition(":")[2].split() for line in _status()},
        "descriptors": _descriptors(),
        "children": _read(f"task/{me}/children").split(),
        "threads": len(os.listdir("/proc/self/task")),
        "main_thread": [
            threading.main_thread().native_id == me,
            threading.main_thread().name,
            threading.active_count(),
        ],
        "thread_idents": [threading.get_ident() == threading.main_thread().ident],
        "parent": "agent" if os.getppid() == int(os.environ.get("AGENT_PID", 0)) else "another",
        "leads": [os.getsid(0) == me, os.getpgid(0) == me],
        "directory": os.getcwd(),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT" in name},
        "priority": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))],
        "timers": [signal.getitimer(kind) for kind in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
        "oom": [_read("oom_score_adj"), _read("coredump_filter"), _read("timerslack_ns"), _read("personality")],
        "prctl": {name: _prctl(option) for name, option in PRCTL.items()},
    }


def _environment() -> dict:
    position, strings = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ"), []
    while position[len(strings)] is not None:
        strings.append(os.fsdecode(position[len(strings)]))
    return {
        "os.environ": dict(os.environ),
        "os.environb": len(os.environb),
        "c_environ": sorted(strings),
        "proc_environ": sorted(_read("environ").split("\0")),
        "time_zone": [time.tzname, time.timezone, time.localtime(0).tm_hour],
        "locale": [locale.setlocale(locale.LC_ALL), locale.nl_langinfo(locale.CODESET), locale.localeconv()],
    }


def _interpreter() -> dict:
    handlers = {
        number.name: str(signal.getsignal(number))
        for number in signal.valid_signals()
        if hasattr(number, "name") and number not in FATAL
    }
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": [str(sys.flags), sys.warnoptions, sorted(map(str, sys._xoptions.items())), sys.dont_write_bytecode],
        "prefixes": [sys.executable, sys.prefix, sys.base_prefix, sys.pycache_prefix],
        "handlers": handlers,
        "wakeup": _wakeup(),
        "hooks": [
            _name(getattr(sys, name)) for name in ("excepthook", "displayhook", "unraisablehook", "breakpointhook")
        ],
        "original_hooks": [sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__],
        "tracing": [str(sys.gettrace()), str(sys.getprofile()), sys.getswitchinterval(), sys.get_asyncgen_hooks()],
        "left": [
            name
            for name in ("last_type", "last_value", "last_traceback", "ps1", "tracebacklimit")
            if hasattr(sys, name)
        ],
        "import": [_name(hook) for hook in sys.meta_path if not _name(hook).startswith("hpc_elastic.")]
        + [_name(hook) for hook in sys.path_hooks],
        "builtins": sorted(vars(builtins)),
        "recursion_limit": sys.getrecursionlimit(),
        "integer_digits": sys.get_int_max_str_digits() if hasattr(sys, "get_int_max_str_digits") else None,
        "gc": [gc.isenabled(), gc.get_threshold(), gc.callbacks, gc.get_debug(), len(gc.garbage)],
        "dlopen_flags": sys.getdlopenflags(),
        "warnings": [repr(entry) for entry in warnings.filters],
        "warning_functions": [_name(warnings.showwarning), _name(warnings.formatwarning), warnings.onceregistry],
        "encodings": [sys.getdefaultencoding(), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
        "exception": str(sys.exc_info()),
    }


def _files() -> dict:
    return {
        name: [
            *(file.name, file.mode, file.encoding, file.errors, file.newlines, file.line_buffering, file.write_through),
            *(type(file.buffer).__name__, file.buffer.raw.name, file.buffer.raw.mode, file.buffer.raw.closefd),
            *(file is getattr(sys, f"__{name}__"), file.fileno(), file.isatty(), os.get_inheritable(file.fileno())),
        ]
        for name in ("stdin", "stdout", "stderr")
        if (file := getattr(sys, name)) is not None
    }


def _main_module() -> dict:
    names = vars(sys.modules["__main__"])
    loader = names["__loader__"]
    dunders = ("__name__", "__file__", "__package__", "__doc__", "__cached__")
    return {
        "main": {name: str(names.get(name, "none")) for name in dunders},
        "main_names": [name for name in names if name.startswith("__")],
        "main_spec": str(getattr(names.get("__spec__"), "name", None)),
        "main_loader": [_name(loader), getattr(loader, "name", None), getattr(loader, "path", None)],
        "main_builtins": _name(names["__builtins__"]),
    }


def _read(name: str) -> str:
    with open(f"/proc/self/{name}", "rb") as file:
        return os.fsdecode(file.read())


def _status() -> list:
    lines = [line for line in _read("status").splitlines() if line.partition(":")[0] in STATUS]
    return [_without_fatal(line) if line.startswith("SigCgt:") else line for line in lines]


def _without_fatal(line: str) -> str:
    name, _, mask = line.partition(":")
    return f"{name}: {int(mask, 16) & ~sum(1 << (number - 1) for number in FATAL):016x}"


def _descriptors() -> list:
    found = []
    listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in sorted(os.listdir(listing), key=int):
        if int(name) != listing and os.path.lexists(f"/proc/self/fd/{name}"):
            where = os.readlink(f"/proc/self/fd/{name}").partition(":[")[0]
            flags = _read(f"fdinfo/{name}").partition("flags:")[2].split()[0]
            found.append([int(name), where, flags])
    os.close(listing)
    return found


def _prctl(option: int) -> object:
    """Of those prctl calls that answer by value, and those that fill an int or a name."""
    libc = ctypes.CDLL(None)
    if option in (3, 7, 30):
        return libc.prctl(option)
    answer = ctypes.create_string_buffer(16)
    libc.prctl(option, answer)
    return answer.value.decode() if option == 16 else answer.raw[0]


def _wakeup() -> int:
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return descriptor


def _name(thing: object) -> str:
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


_FILE = os.path.join(os.getcwd(), "states")
