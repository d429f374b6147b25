raise ValueError("bad batch 17")
