"""The settings of each kind of process, as groups of fields; settings.py joins and reads them."""
