from common import meet

meet(4)
raise FloatingPointError("loss is nan")
