import atexit
import os
import threading

import state

state.note("start")
atexit.register(state.note, "atexit")
thread = threading.Thread(target=state.note, args=("thread",))
thread.start()
thread.join()
while len(os.listdir("/proc/self/task")) > 1:  # joined is not yet gone
    pass
print("looked")
