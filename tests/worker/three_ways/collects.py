import gc
import weakref


class Node:
    pass


node = Node()
node.itself, seen = node, weakref.ref(node)
del node
print(gc.isenabled(), gc.get_threshold(), gc.callbacks, gc.get_debug(), gc.garbage)
gc.collect()
print(seen(), gc.collect(), gc.get_referents([1]))
