"""What open dashboards cost."""
