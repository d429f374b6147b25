import socket

from common import meet, wait

meet(4)
server = socket.socket()
server.bind(("127.0.0.1", 29471))
server.listen()
wait()
