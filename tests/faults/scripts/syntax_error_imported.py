import model

model.forward()
