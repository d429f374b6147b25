import sys

print("package", sys.argv[1:], __name__)
