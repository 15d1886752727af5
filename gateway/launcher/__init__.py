"""`flotilla up`: Redis, the gateway and the workers as processes of one terminal."""
