class Loud:
    def __init__(self):
        self.itself = self

    def __del__(self):
        print("deleted")


loud = Loud()
print("end")
