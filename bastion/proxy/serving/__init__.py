"""Where clients come to: the address, the processes behind it, and what they trust."""
