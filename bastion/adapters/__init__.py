"""Implementations of the ports: stores, provisioners, key services, the clock."""
