"""Process: signals, service manager, machine, memory and devices."""
