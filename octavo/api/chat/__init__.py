"""What the chat protocols share: a conversation, the turn that answers it, tools, and how answers are read."""
