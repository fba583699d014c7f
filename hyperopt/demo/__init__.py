"""The demonstration: the whole loop on a real model, every measurement in a process of its own.

loop.py      the story: capture, upload, plan, fetch, apply, measure
children.py  the processes: a server, and one for each run of MindSpore
outcome.py   what was measured, which claims hold, and the table
"""
