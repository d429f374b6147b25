import threading


def fetch():
    return {}["batch"]


thread = threading.Thread(target=fetch)
thread.start()
thread.join()
