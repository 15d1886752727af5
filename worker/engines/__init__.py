"""Inference engines behind one interface: ASGI applications that also report their load."""
