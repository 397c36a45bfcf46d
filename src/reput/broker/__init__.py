"""The broker: stores messages and delivers them to consumers.

server.py    assembly: store, tables, processors, loops; start and stop
processors/  request code -> function: decode the header, call a part, encode the reply
fastpath/    shortcuts from request bytes to the store; without them the processors serve everything
"""
