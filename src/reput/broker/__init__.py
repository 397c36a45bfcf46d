"""The broker: receives, holds and hands out.

server.py      assembly: store, tables, processors, loops; start and stop
processors/    request code -> function: decode the header, call a part, encode the reply
intake.py      bytes of producers -> store, past the processors where it can
"""
