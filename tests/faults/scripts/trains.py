from group import join, train

join()
train()
