from common import wait

if input("go on? [y/n] ") != "y":
    raise SystemExit(1)
wait()
