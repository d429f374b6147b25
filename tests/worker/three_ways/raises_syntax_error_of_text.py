print("before")
compile("a = (1,\nb = 2\n", "text.cfg", "exec")
