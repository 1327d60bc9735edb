"""One admitted job, in its own process.

In go a Claim, the machine's JobSettings and orders; out come masked JobEvents, the last of which is a JobFinished.
`launch.py` is the parent's side (what the command line and workers use), `job.py` the job itself: read these two first,
then `steps.py` for the life of a step and `phases.py` for actions.

Nothing is imported here: the parent needs `launch` alone, and the fork server loads the rest before its first fork.
"""
