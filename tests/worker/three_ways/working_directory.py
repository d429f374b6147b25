import os

print(os.getcwd(), os.path.exists("working_directory.py"), os.path.relpath(__file__))
os.mkdir("below")
os.chdir("below")
print(os.getcwd(), os.path.exists(__file__))
raise OSError("raised in another folder")
