"""One endpoint over all specialists: who answers, which replica, and why."""
