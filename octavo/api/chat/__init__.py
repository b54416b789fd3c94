"""Shared by the chat protocols: conversations, turns, tools and answer parsing."""
