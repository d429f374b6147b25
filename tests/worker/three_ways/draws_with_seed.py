import random
import tempfile

random.seed(5)
print(random.random(), random.Random(7).random(), tempfile.gettempdir(), tempfile.tempdir)
