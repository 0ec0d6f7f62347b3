"""The emulated controllers: JobSet, Job, garbage collection, scheduler, node pools, disruptions.

They are clients of the API only, so they also run against a real API server that has none of its own. What they decide
is computed by pure functions from objects to `Write`s; a thread per controller (`loop`) carries the writes out.
"""
