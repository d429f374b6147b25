import tokens

print(tokens)
