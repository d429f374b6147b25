import os
import stat

os.close(os.open("before", os.O_CREAT | os.O_WRONLY, 0o666))
print(oct(os.umask(0o077)))
os.close(os.open("after", os.O_CREAT | os.O_WRONLY, 0o666))
print(*(stat.filemode(os.stat(name).st_mode) for name in ("before", "after")))
