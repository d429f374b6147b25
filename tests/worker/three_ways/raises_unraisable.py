class Bad:
    def __del__(self):
        raise ValueError("in a destructor")


Bad()
print("end")
