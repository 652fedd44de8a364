"""The memory store as a server has it: behind a wire in this process, and behind a real socket. Both pass the suite."""
