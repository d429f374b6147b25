def load():
    raise ImportError("not here", name="backend", path="/nowhere")


load()
