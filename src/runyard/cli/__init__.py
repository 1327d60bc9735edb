"""The command line: thin. Parse, call, print.

`table.py` lists every command once (name, help line, module); help, completion, man page and tests come from it.
"""
