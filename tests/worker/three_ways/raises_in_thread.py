import sys
import threading


def fail():
    raise ValueError("in a thread")


def leave():
    print("leaving the thread")
    sys.exit(4)


for target in (fail, leave):
    thread = threading.Thread(target=target, name=f"thread {target.__name__}")
    thread.start()
    thread.join()
print("the script goes on")
threading.excepthook = lambda arguments: print("hook", arguments.exc_type, arguments.thread.name)
thread = threading.Thread(target=fail, name="hooked")
thread.start()
thread.join()
sys.exit(3)
