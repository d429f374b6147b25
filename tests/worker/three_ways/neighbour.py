value = "first"
