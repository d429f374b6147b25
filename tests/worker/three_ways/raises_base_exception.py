class Mine(BaseException):
    pass


raise Mine("neither Exception nor exit")
