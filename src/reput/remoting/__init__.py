"""Remoting: commands between processes.

connection.py  pure: bytes into frames, replies to those who asked
channel.py     one connection of the loop
server.py      accepts connections
client.py      makes them
"""
