import sys

print(sys.getrecursionlimit())


def depth(number):
    return number if number == 0 else depth(number - 1)


print(depth(900))
sys.setrecursionlimit(5000)
print(depth(4000))
