"""What a rehearsed Python loads before the user's script, without the rest of vrambudget."""
