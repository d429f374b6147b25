import threading
import time

started = threading.Event()


def spin():
    started.set()
    while True:
        time.sleep(0.001)


threading.Thread(target=spin, daemon=True).start()
started.wait(30)
print("end")
