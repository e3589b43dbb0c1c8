"""The consumer: long polls with permits, acknowledgements that ride on them, and what is held when an owner changes."""
