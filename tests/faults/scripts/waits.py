import signal

from common import wait

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, and every process inherits that

wait()
