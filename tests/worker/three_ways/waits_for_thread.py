import sys
import threading
import time


def work():
    time.sleep(0.05)
    print("thread is through", threading.main_thread().is_alive())


threading.Thread(target=work).start()
print("end")
sys.exit(8)
