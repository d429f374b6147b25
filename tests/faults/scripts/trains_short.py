from group import join, train

join(3)
train()
