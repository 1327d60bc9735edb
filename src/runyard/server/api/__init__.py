"""The HTTP side of the control plane, as plain ASGI.

`worker` is the dial-out protocol, `people` what the command line and the pages call. Every error is a Problem in JSON;
nothing here decides: it decodes, calls a flow and answers.
"""
