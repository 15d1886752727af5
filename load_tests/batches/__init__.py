"""`batch`: what a line of a batch costs, how busy engines are, and chats beside a batch."""
