from common import wait

wait()
