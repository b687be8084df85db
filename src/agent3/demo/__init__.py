"""The travel demo: a planner that finds a flight agent, a hotel server and websites, and gets by when one goes down.

Everything is real and on this machine: the flight agent (A2A) and the hotel server (MCP) are processes of their own,
and a real browser opens the websites. Nothing of it is stored: it is there while ``agent3 serve --demo`` runs.
"""
