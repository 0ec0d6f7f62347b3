"""The kubelet of all emulated nodes: runs each pod as a process group of this machine, and writes its status.

A pod's supervisor (`pod`) outlives the emulator for a while, so that a restarted one can adopt it.
"""
