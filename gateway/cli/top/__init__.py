"""`flotilla top`: the fleet in the terminal, live."""
