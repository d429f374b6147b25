import sys

print("out")
sys.stdout.close()
print("more")
