"""What a worker's children inherit, by every way that Python has to make one."""

import multiprocessing
import os
import subprocess
import sys

import state


def look(what):
    state.note(what)


if __name__ == "__main__":
    subprocess.run([sys.executable, "-c", "import state; state.note('subprocess')"], check=True)
    subprocess.run([sys.executable, "-c", "import state; state.note('all open')"], check=True, close_fds=False)
    os.system(
        "ulimit -a; umask; ls -l /proc/self/fd | sed 's/.* -> //; /proc/d; s/:.*//'; env | sort; kill -l >/dev/null"
    )
    if (child := os.fork()) == 0:
        state.note("os.fork")
        os._exit(0)
    os.waitpid(child, 0)
    for method in ("fork", "spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=look, args=(method,))
        process.start()
        process.join()
        print(method, process.exitcode)
