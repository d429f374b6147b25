import faulthandler
import os
import signal
import sys
import threading

started, release = threading.Event(), threading.Event()


def wait():
    started.set()
    release.wait(30)


thread = threading.Thread(target=wait)
thread.start()
started.wait(30)
faulthandler.dump_traceback(sys.stderr, all_threads=False)
print(faulthandler.is_enabled(), flush=True)
faulthandler.register(signal.SIGUSR1, file=sys.stdout, all_threads=False)
os.kill(os.getpid(), signal.SIGUSR1)
release.set()
thread.join()
