"""For clients: httpx transports whose calls and streams survive the loss of a gateway.

Imports nothing else of Flotilla, only httpx, so that the folder can be copied into a client.
"""
