"""Remoting: commands between processes.

connection.py  without I/O: bytes into frames, replies to pending requests
channel.py     one connection on the event loop
server.py      accepts connections
client.py      opens connections
http2          HTTP/2 and gRPC, beside commands
"""
