import os

longitude = 1
try:
    os.getcwdd()
except AttributeError as error:
    import traceback

    traceback.print_exception(error)
print(longitud)
