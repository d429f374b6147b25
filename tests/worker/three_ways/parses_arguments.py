import argparse

parser = argparse.ArgumentParser(description="Says what it is called.")
parser.add_argument("--size", type=int, default=3)
print(parser.prog, parser.parse_args().size)
parser.error("no such thing")
