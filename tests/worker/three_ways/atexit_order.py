import atexit
import sys
import threading

main = sys.modules["__main__"]
release = threading.Event()


def linger():
    release.wait(30)
    print("thread", sys.modules["__main__"] is main, main.__dict__.get("__file__"))


threading.Thread(target=linger).start()
atexit.register(lambda: print("first", sys.modules["__main__"] is main, main.__dict__.get("__file__")))
atexit.register(lambda: atexit.register(print, "registered while the functions run"))
atexit.register(print, "last")
threading._register_atexit(release.set)
print("end of script", main.__file__)
