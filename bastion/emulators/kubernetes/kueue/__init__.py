"""Kueue on the emulated cluster: the controllers and the scheduler of Kueue v0.19.2 with its default configuration, as
far as JobSets need them.

Its kinds and webhooks are in `apiserver.rules.kueue` and `apiserver.rules.kueue_jobsets`. Feature gates have their
defaults of v0.19.2.
"""
