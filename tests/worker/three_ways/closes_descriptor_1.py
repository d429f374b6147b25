import os

print("out")
os.close(1)
