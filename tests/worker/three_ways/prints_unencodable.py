import sys

print("gr\u00fc\u00dfe", sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors, open(__file__).encoding)
print("\udcff", file=sys.stderr)
print("\udcff")
