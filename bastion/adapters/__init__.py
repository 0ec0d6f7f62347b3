"""The outside world behind the ports: stores, provisioners, the clock."""
