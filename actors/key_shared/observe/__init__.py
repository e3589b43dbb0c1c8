"""Questions of operators about Key_Shared: explain, statistics, what-if, heavy keys, self-checks."""
